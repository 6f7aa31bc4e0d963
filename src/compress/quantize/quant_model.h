/* A model whose matrices were replaced one by one, with the work files behind them. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_MODEL_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_MODEL_H

#include "base/file.h"
#include "compress/quantize/quant_layer.h"

typedef struct nmlp_quant_model {
    nmlp_view embedding, lm_head;
    nmlp_file_map head_map;
    nmlp_layer *layers;  /* [L] */
    nmlp_arena experts;  /* of the layers */
    nmlp_file_map *maps; /* [L] */
    int64_t n_layers;
} nmlp_quant_model;

nmlp_status nmlp_quant_model_init(nmlp_quant_model *made, const nmlp_model *model, nmlp_err *err);
void nmlp_quant_model_fini(nmlp_quant_model *made);

#endif
