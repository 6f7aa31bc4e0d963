/* Who runs the gated MLP in `bench mlp`: this library's kernel sets, and the same chain of matmuls in other libraries.
 *
 * Other libraries are not linked: a module built beside the command where they are installed (bench/peers.c) offers
 * them, and is opened only when asked for. */
#ifndef NMLP_BENCH_PEER_H
#define NMLP_BENCH_PEER_H

#include "kernels/kernels.h"

typedef struct nmlp_bench_case {
    int64_t hidden;
    int64_t inner;
    int64_t rank;       /* 0: dense */
    nmlp_mlp_desc desc; /* weights of one type */
    int n_copies;       /* of the weights; a run names the copy it uses, so that cold ones come from memory */
    int64_t s_max;
    nmlp_pool *pool;
} nmlp_bench_case;

enum { NMLP_PEER_NAME_MAX = 32, NMLP_PEER_COPIES_MAX = 64 };

typedef struct nmlp_peer {
    char name[NMLP_PEER_NAME_MAX];
    void *ctx;
    void (*run)(void *ctx, int copy, float *y, const float *x, int64_t s);
    void (*destroy)(void *ctx);
    double bytes_per_weight;
    bool bf16; /* activations are rounded */
} nmlp_peer;

/* This library with one kernel set. */
nmlp_status nmlp_peer_ours(nmlp_peer *peer, const nmlp_bench_case *c, const nmlp_kernels *kernels, nmlp_err *err);

/* Another library: a name to ask for it by, and its maker. */
typedef struct nmlp_peer_maker {
    const char *name;
    nmlp_status (*make)(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_err *err);
} nmlp_peer_maker;

/* Makers from the module beside the running program, ended by one without a name; their libraries use n_threads. The
 * module stays open. Fails, saying where it was looked for, when there is none. */
nmlp_status nmlp_peer_module_open(const nmlp_peer_maker **makers, int n_threads, nmlp_err *err);
#define NMLP_PEER_MODULE_FILE "neuronmlp-peers.so"
#define NMLP_PEER_MODULE_SYMBOL "nmlp_peer_makers"

#endif
