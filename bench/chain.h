/* What the foreign chains of matmuls share: their matrices in order and the element-wise work, on all threads. */
#ifndef NMLP_BENCH_CHAIN_H
#define NMLP_BENCH_CHAIN_H

#include "bench/peer.h"

/* gate (v, u), up (v, u), down (v, u); dense ones have one matrix each. */
typedef struct nmlp_chain {
    nmlp_view w[6];
    int n;
} nmlp_chain;
nmlp_chain nmlp_chain_of(const nmlp_mlp_desc *desc);

/* act = silu(gate)*up */
void nmlp_chain_activate(nmlp_pool *pool, void *act, const void *gate, const void *up, nmlp_dtype dtype, int64_t n);
/* dst = src, n elements of other types. */
void nmlp_chain_convert(nmlp_pool *pool, void *dst, nmlp_dtype to, const void *src, nmlp_dtype from, int64_t n);

#endif
