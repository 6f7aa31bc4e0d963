/* All layers of a model in fewer bits, one after the other: each sees the hidden states that the quantised layers below
 * it leave, and aims half way at the outputs it has on those of the model as it was. One layer's moments and weights
 * are in memory at a time. The processes of a group do it together, to the bytes of one. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_PASS_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_PASS_H

#include "base/progress.h"
#include "compress/quantize/quant_model.h"
#include "compress/quantize/quant_share.h"
#include "engine/session.h"

typedef struct nmlp_quant_pass {
    nmlp_engine *engine;
    const nmlp_quant_share *share;
    const nmlp_quant_format *formats; /* [L, NMLP_QUANT_MATRICES] */
    nmlp_quant_format head;           /* of the output matrix, and of the embedding */
    const char *work_dir;             /* on a file system that all processes share */
    uint64_t fingerprint;
    const nmlp_progress *progress;
    nmlp_quant_model *made;
    float *rows;        /* [own tokens,H] hidden states of this process's windows; behind the last layer at the end */
    float *dense_rows;  /* [own calibration tokens,H] those of the model as it was; the pass's own */
    double done, total; /* own tokens times layers */
} nmlp_quant_pass;

/* Fills `made` (initialised) and `rows` (allocated by the caller). */
nmlp_status nmlp_quant_pass_run(nmlp_quant_pass *pass, nmlp_err *err);

#endif
