/* Second moments of what matrices see, summed in the order of the text by the processes of a group: each has all
 * windows for a while and adds its blocks of them, so that no sum depends on how many processes there are. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_SUM_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_SUM_H

#include "compress/quantize/quant_share.h"
#include "kernels/kernels.h"

/* What sums over the same windows share. */
typedef struct nmlp_quant_summer {
    const nmlp_quant_share *share; /* borrowed */
    const nmlp_kernels *kernels;
    nmlp_pool *pool;
    nmlp_arena *windows; /* borrowed: of what is spent when the sums are done */
    int64_t together;    /* windows that are added at once: a pass over a sum costs as much as their products */
} nmlp_quant_summer;

typedef struct nmlp_quant_sum {
    int64_t n;      /* K */
    double *second; /* [K,K] x x^T */
    double *drift;  /* [K,K] d x^T; NULL: not wanted */
    float *x;       /* [context,K] of this process's window: rows that matrices see; of the arena `windows` */
    float *d;       /* [context,K] the same of the model as it was; there where drift is */
    float *kept[2]; /* [together * context,K] of x and d: windows of all processes, not added yet */
    int64_t n_kept; /* windows */
} nmlp_quant_sum;

nmlp_status nmlp_quant_summer_init(nmlp_quant_summer *summer, const nmlp_quant_share *share, const char *isa,
                                   nmlp_pool *pool, nmlp_arena *windows, nmlp_err *err);
/* Sums are in memory of the arena. */
nmlp_status nmlp_quant_sum_init(nmlp_quant_sum *sum, const nmlp_quant_summer *summer, int64_t n, bool drift,
                                nmlp_arena *arena, nmlp_err *err);

/* Adds the windows of a turn: those of the first n_windows processes, which have them in x and d. */
nmlp_status nmlp_quant_sum_add(nmlp_quant_sum *sum, const nmlp_quant_summer *summer, int64_t n_windows, nmlp_err *err);

/* In the memory of process `owner`: `second` becomes a mean over so many tokens, with what the text cannot tell about
 * pairs of inputs shrunk towards 0, `drift` that of (d - x) x^T. In that of the others both are spent. */
nmlp_status nmlp_quant_sum_finish(nmlp_quant_sum *sum, const nmlp_quant_summer *summer, int64_t tokens, int owner,
                                  nmlp_err *err);

#endif
