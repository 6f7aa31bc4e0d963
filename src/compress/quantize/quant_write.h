/* The quantised checkpoint: the source's tensors in their order and under their names. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_WRITE_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_WRITE_H

#include "base/dir_stage.h"
#include "base/progress.h"
#include "compress/quantize/quant_pass.h"

/* Weights, config.json (with the "neuronmlp" object of a compressed source) and side files; the stage is closed by
 * success. */
nmlp_status nmlp_quant_write(const nmlp_model *model, const nmlp_quant_model *made, nmlp_dir_stage *stage,
                             const nmlp_progress *progress, int64_t *bytes, nmlp_err *err);

#endif
