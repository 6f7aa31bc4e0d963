/* A weight in strip order (gemm.h), packed once. */
#ifndef NMLP_KERNELS_GEMM_PACKED_WEIGHT_H
#define NMLP_KERNELS_GEMM_PACKED_WEIGHT_H

#include "kernels/kernels_internal.h"

typedef struct nmlp_gemm_weight {
    int64_t n; /* outputs */
    int64_t k; /* inputs */
    int64_t n_padded;
    int64_t k_padded;
    nmlp_dtype dtype;   /* of the packed elements: the source's, or bf16 for sets with bf16 activations */
    char *strips;       /* [n_padded/16][k_padded*16] */
    size_t strip_bytes; /* from strip to strip */
    size_t bytes;
    bool finite; /* no NaN or Inf in the source */
} nmlp_gemm_weight;

/* Packs `weight` [N,K]; the source is not needed afterwards. */
nmlp_status nmlp_gemm_weight_init(nmlp_gemm_weight *matrix, const nmlp_kernels *kernels, const nmlp_view *weight,
                                  nmlp_pool *pool, nmlp_err *err);
void nmlp_gemm_weight_fini(nmlp_gemm_weight *matrix);

/* Strip `strip` from input k (even) on. */
static inline const char *nmlp_gemm_weight_at(const nmlp_gemm_weight *m, int64_t strip, int64_t k) {
    return m->strips + m->strip_bytes * (size_t)strip + (size_t)(k * NMLP_STRIP) * nmlp_dtype_bytes(m->dtype);
}

#endif
