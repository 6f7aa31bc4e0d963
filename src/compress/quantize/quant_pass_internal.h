/* The steps of a pass (quant_pass.h). Every process of the group calls them. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_PASS_INTERNAL_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_PASS_INTERNAL_H

#include "base/work_file.h"
#include "compress/quantize/quant_pass.h"
#include "compress/work.h"
#include "kernels/kernels.h"

enum { NMLP_QUANT_PATH_MAX = 4096 };

/* Tells of so many more tokens. */
nmlp_status nmlp_quant_pass_advance(nmlp_quant_pass *pass, int64_t tokens, nmlp_err *err);

/* What the matrices of a layer see. */
typedef struct nmlp_quant_seen {
    const nmlp_kernels *kernels;
    nmlp_quant_moments moments; /* of an input in the memory of its owner alone */
    float *routed;              /* [n_routed, H] what experts see; NULL: the layer has none */
    int64_t n_routed;
} nmlp_quant_seen;

/* Runs layer l of the model as it was over both streams of calibration windows; `dense_rows` go one layer further,
 * `rows` stay where they are. Memory is of the arena. */
nmlp_status nmlp_quant_collect(nmlp_quant_pass *pass, int64_t l, const int owners[NMLP_QUANT_INPUTS], nmlp_arena *arena,
                               nmlp_quant_seen *seen, nmlp_err *err);
/* Where the layer is there already: what that does to the hidden states. */
nmlp_status nmlp_quant_collect_skip(nmlp_quant_pass *pass, int64_t l, nmlp_err *err);

/* Embedding and head of `made`, from the work folder or made anew. */
nmlp_status nmlp_quant_head_open(nmlp_quant_pass *pass, nmlp_work_tally *tally, nmlp_err *err);

#endif
