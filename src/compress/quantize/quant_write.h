/* The quantised checkpoint: the source's tensors in their order and under their names. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_WRITE_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_WRITE_H

#include "base/dir_stage.h"
#include "base/progress.h"
#include "compress/quantize/quant_model.h"
#include "compress/quantize/quantize.h"

/* Weights, config.json (with the "neuronmlp" object of a compressed source), a model card and side files; the stage is
 * closed by success. Everything in the report but bytes_after, which is filled, must be there. */
nmlp_status nmlp_quant_write(const nmlp_model *model, const nmlp_quant_model *made, nmlp_dir_stage *stage,
                             const nmlp_progress *progress, nmlp_quantize_report *report, nmlp_err *err);

#endif
