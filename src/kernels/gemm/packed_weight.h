/* A weight in strip order (gemm.h), packed once. */
#ifndef NMLP_KERNELS_GEMM_PACKED_WEIGHT_H
#define NMLP_KERNELS_GEMM_PACKED_WEIGHT_H

#include "kernels/kernels_internal.h"

typedef struct nmlp_gemm_weight {
    int64_t n; /* outputs */
    int64_t k; /* inputs */
    int64_t n_padded;
    int64_t k_padded;
    /* Of the packed elements: the source's, or bf16 for plain types in sets with bf16 activations and for the codes of
     * FP8, which it holds exactly; Q8 for those that widen to it (quant.h) but Q4M. */
    nmlp_dtype dtype;
    char *strips;       /* [n_padded/16][k_padded*16] */
    size_t strip_bytes; /* from strip to strip */
    size_t bytes;
    bool finite;         /* no NaN or Inf in the source */
    const float *scales; /* [n_padded] of rows, of all quantised types but Q4; else NULL */
    nmlp_gemm_span span; /* quantised */
} nmlp_gemm_weight;

/* Packs `weight` [N,K]; the source is not needed afterwards. */
nmlp_status nmlp_gemm_weight_init(nmlp_gemm_weight *matrix, const nmlp_kernels *kernels, const nmlp_view *weight,
                                  nmlp_pool *pool, nmlp_err *err);
void nmlp_gemm_weight_fini(nmlp_gemm_weight *matrix);

/* Bytes of k inputs of a strip: of quantised types whole spans, and the codes of a part of one. */
static inline size_t nmlp_gemm_weight_bytes(const nmlp_gemm_weight *m, int64_t k) {
    size_t input_bits = NMLP_STRIP * (size_t)nmlp_dtype_bits(m->dtype);
    if (!m->span.bytes) return (size_t)k * input_bits / 8;
    return (size_t)(k / NMLP_SPAN) * m->span.bytes + (size_t)(k % NMLP_SPAN) * input_bits / 8;
}

/* What a run's quant_k must be at least for this weight. */
static inline int64_t nmlp_gemm_weight_quant_k(const nmlp_gemm_weight *m) {
    return nmlp_dtype_is_quantised(m->dtype) ? m->k_padded : 0;
}

/* Whether its strips are tiles of int8 as they lie. */
static inline bool nmlp_gemm_weight_takes_int8(const nmlp_gemm_weight *m) {
    return m->dtype == NMLP_DTYPE_Q8 && m->k_padded % 64 == 0;
}

/* Strip `strip` from input k (even, of quantised types the first of a span) on. */
static inline const char *nmlp_gemm_weight_at(const nmlp_gemm_weight *m, int64_t strip, int64_t k) {
    return m->strips + m->strip_bytes * (size_t)strip + nmlp_gemm_weight_bytes(m, k);
}

/* The parts of memory that matmuls of few rows by these weights read. */
nmlp_pool_ahead nmlp_gemm_weights_ahead(const nmlp_gemm_weight *const weights[], int n);

#endif
