/* The gated MLP of one model shape, dense and at some ranks, by this library and by others: side by side in one run. */
#ifndef NMLP_BENCH_MLP_H
#define NMLP_BENCH_MLP_H

#include "bench/peer.h"
#include "bench/samples.h"

/* "f32", "bf16", "q8", "q4" (groups of 32) or "q4-64", "q4z" or "q4z-64" (with zero points). */
typedef struct nmlp_bench_weight_type {
    const char *name;
    nmlp_dtype dtype;
    int group;
    bool zeros;
} nmlp_bench_weight_type;

/* NULL when there is no type of that name. */
const nmlp_bench_weight_type *nmlp_bench_weight_type_of(const char *name);

typedef struct nmlp_bench_mlp_options {
    int64_t hidden;
    int64_t inner;
    const int64_t *ranks; /* the dense MLP is always measured beside them */
    size_t n_ranks;
    const int64_t *rows;
    size_t n_rows;
    const nmlp_kernels *kernels;
    const nmlp_bench_weight_type *types; /* of this library's weights, measured side by side; peers have the first */
    size_t n_types;
    const nmlp_peer_maker *const *peers;
    size_t n_peers;
    double seconds; /* for every subject and number of rows, at least */
    nmlp_pool *pool;
} nmlp_bench_mlp_options;

/* Up to NMLP_BENCH_COLD_ROWS rows, weights come from memory (copies rotate) and the limit is bandwidth; above, it
 * is the rate of arithmetic. */
enum { NMLP_BENCH_COLD_ROWS = 16, NMLP_BENCH_NOTE_MAX = 256 };

typedef struct nmlp_bench_mlp_result {
    char name[NMLP_PEER_NAME_MAX]; /* kernel set and type of weights, or library */
    int64_t rank;                  /* 0: dense */
    int64_t rows;
    int n_samples; /* 0: not timed, the note says why */
    bool cold;     /* rate in GB/s of weights, else GFLOP/s */
    nmlp_spread ms;
    nmlp_spread rate;
    nmlp_spread share;  /* of the probe read before and after each sample */
    double probe;       /* median */
    int n_quiet;        /* samples whose probe stood within a fifth of the best */
    double share_quiet; /* medians of those samples and of the others; 0: none */
    double share_contended;
    double speedup;       /* over the dense MLP of the same name: median of ratios within a round; 0: not timed */
    double ideal_speedup; /* from the number of weights */
    double ours_faster;   /* for others: by what factor this library is, likewise; 0: this library itself */
    char note[NMLP_BENCH_NOTE_MAX]; /* this library's plan */
} nmlp_bench_mlp_result;

/* `results` is one block, free with nmlp_mem_free. Every subject is verified before it is timed. */
nmlp_status nmlp_bench_mlp_run(nmlp_bench_mlp_result **results, size_t *n_results,
                               const nmlp_bench_mlp_options *options, nmlp_err *err);

#endif
