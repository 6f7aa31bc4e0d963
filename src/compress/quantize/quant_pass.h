/* All layers of a model in fewer bits, one after the other: each sees the hidden states that the quantised layers below
 * it leave, and aims half way at the outputs it has on those of the model as it was. One layer's moments and weights
 * are in memory at a time. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_PASS_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_PASS_H

#include "base/progress.h"
#include "compress/calibrate/calib_text.h"
#include "compress/quantize/quant_file.h"
#include "engine/session.h"

/* A model whose matrices were replaced one by one, with the work files behind them. */
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

typedef struct nmlp_quant_pass {
    nmlp_engine *engine;
    const nmlp_calib_windows *windows;
    const nmlp_quant_format *formats; /* [L, NMLP_QUANT_MATRICES] */
    nmlp_quant_format head;           /* of the output matrix, and of the embedding */
    const char *work_dir;
    uint64_t fingerprint;
    const nmlp_progress *progress;
    nmlp_quant_model *made;
    float *rows;        /* [T,H] hidden states of all windows; behind the last layer at the end */
    float *dense_rows;  /* [calibration tokens,H] those of the model as it was; the pass's own */
    double done, total; /* tokens times layers */
} nmlp_quant_pass;

/* Fills `made` (initialised) and `rows` (allocated by the caller). */
nmlp_status nmlp_quant_pass_run(nmlp_quant_pass *pass, nmlp_err *err);

#endif
