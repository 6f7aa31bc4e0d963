/* A text file as token ids of a model. */
#ifndef NMLP_TEXT_ENCODE_FILE_H
#define NMLP_TEXT_ENCODE_FILE_H

#include "base/status.h"
#include "text/tokenizer.h"

/* Appends the ids of the whole file, without special tokens; `model_dir` holds tokenizer.json. */
nmlp_status nmlp_encode_file(const char *model_dir, const char *path, nmlp_ids *ids, nmlp_err *err);

#endif
