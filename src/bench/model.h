/* Whole models, prefill and decode, side by side in one run. */
#ifndef NMLP_BENCH_MODEL_H
#define NMLP_BENCH_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "bench/samples.h"

typedef struct nmlp_bench_model_options {
    const char *const *dirs; /* the first one is what the others are compared with */
    int n_models;
    const char *isa; /* NULL: the fastest */
    bool bf16;       /* activations may be rounded */
    int rounds;
    nmlp_pool *pool;
} nmlp_bench_model_options;

enum { NMLP_BENCH_MODELS_MAX = 8, NMLP_BENCH_MODEL_CASES = 4 };

typedef struct nmlp_bench_model_case {
    int prompt;           /* tokens of the prefill; 0: decode */
    nmlp_spread tokens_s; /* median 0: longer than the model's context */
    nmlp_spread share;    /* of the probe: FLOPs of the weights for prefill, bytes of the weights for decode */
    double probe;
    double speedup;       /* over the first model: median of ratios within a round */
    double ideal_speedup; /* from FLOPs or bytes */
} nmlp_bench_model_case;

typedef struct nmlp_bench_model_result {
    const char *dir;
    const char *isa;
    double weight_bytes;
    double read_seconds; /* of the whole file through read(), before the model is opened */
    double load_seconds; /* open, check, pack */
    double cache_bytes;  /* KV cache of the session */
    double rss_bytes;    /* peak of the process so far: says something for the first model only */
    nmlp_bench_model_case cases[NMLP_BENCH_MODEL_CASES];
} nmlp_bench_model_result;

nmlp_status nmlp_bench_model_run(nmlp_bench_model_result results[], const nmlp_bench_model_options *options,
                                 nmlp_err *err);

#endif
