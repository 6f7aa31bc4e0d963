/* The text a model is compressed with. */
#ifndef NMLP_COMPRESS_CALIBRATE_CALIBRATION_TEXT_H
#define NMLP_COMPRESS_CALIBRATE_CALIBRATION_TEXT_H

#include "base/status.h"
#include "base/str.h"
#include "text/tokenizer.h"

/* Appends the token ids of `file`, or with NULL of calib.txt in the model's directory. `name` receives the file's name
 * without its folder. */
nmlp_status nmlp_calibration_read(const char *model_dir, const char *file, nmlp_ids *ids, nmlp_str *name,
                                  nmlp_err *err);

#endif
