/* The experts of one layer in fewer bits: each by the tokens that the router sent to it, beside tokens of the whole
 * text where few came (calibrate/expert_sample.h). */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_EXPERTS_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_EXPERTS_H

#include "compress/quantize/quant_layer.h"
#include "engine/engine.h"

/* What the experts of a layer see. */
typedef struct nmlp_quant_routed {
    const nmlp_engine *engine;
    const nmlp_kernels *kernels;
    int64_t layer;
    const float *rows; /* [n_rows, H] */
    int64_t n_rows;
} nmlp_quant_routed;

/* `out`, a copy of the source, gets quantised views of its experts; the maker's moments are not looked at. Experts aim
 * at their own matrices: what the model as it was sends to them are other tokens. */
nmlp_status nmlp_quant_experts_make(nmlp_layer *out, const nmlp_layer *source, const nmlp_quant_routed *routed,
                                    const nmlp_quant_maker *maker, nmlp_err *err);

#endif
