/* Who runs the gated MLP in bench_mlp: this library's sets, and the same chain of matmuls in other libraries. */
#ifndef NMLP_BENCH_PEER_H
#define NMLP_BENCH_PEER_H

#include "kernels/kernels.h"

typedef struct nmlp_bench_case {
    int64_t hidden;
    int64_t inner;
    int64_t rank;       /* 0: dense */
    nmlp_mlp_desc desc; /* bf16 weights */
    int n_copies;       /* of the weights; a run names the copy it uses, so that cold ones come from memory */
    int64_t s_max;
    nmlp_pool *pool;
    const nmlp_cpu *cpu;
} nmlp_bench_case;

typedef struct nmlp_peer {
    char name[32];
    void *ctx;
    void (*run)(void *ctx, int copy, float *y, const float *x, int64_t s);
    void (*destroy)(void *ctx);
    double bytes_per_weight;
    bool bf16;
} nmlp_peer;

/* Each returns false where the peer is absent or cannot run here, and says why on stderr. */
bool nmlp_peer_ours(nmlp_peer *peer, const nmlp_bench_case *c, const char *set);
bool nmlp_peer_openblas(nmlp_peer *peer, const nmlp_bench_case *c);
bool nmlp_peer_onednn(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_dtype dtype);

/* act = silu(gate)*up, all threads: the element-wise part of the foreign chains. */
void nmlp_peer_activate(nmlp_pool *pool, void *act, const void *gate, const void *up, nmlp_dtype dtype, int64_t n);

/* The matrices of a chain in order: gate (v, u), up (v, u), down (v, u); dense ones have one. */
typedef struct nmlp_chain {
    nmlp_view w[6];
    int n;
} nmlp_chain;
nmlp_chain nmlp_chain_of(const nmlp_mlp_desc *desc);

#endif
