/* Whole models, prefill and decode, side by side in one run. */
#ifndef NMLP_BENCH_MODEL_H
#define NMLP_BENCH_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/process_group.h"
#include "bench/samples.h"

typedef struct nmlp_bench_model_options {
    const char *const *dirs; /* the first one is what the others are compared with */
    int n_models;
    const char *device; /* as nmlp_backend_choose takes it */
    const char *isa;    /* NULL: the fastest */
    bool bf16;          /* activations may be rounded */
    int rounds;
    double decode_seconds;  /* about so long takes a sample of decoding, whatever the batch; 0: as many tokens as one
                               sequence writes in a quarter of a second */
    const int64_t *batches; /* numbers of sequences that decode together, 1 to NMLP_BENCH_BATCH_MAX each */
    int n_batches;          /* 0 (where there are `prompts`) to NMLP_BENCH_BATCHES_MAX */
    const int *prompts;     /* tokens of each prefill, at most NMLP_BENCH_PREFILLS; NULL: 128, 512 and 2048 */
    int n_prompts;
    bool rates_only; /* no probes: nothing is said about shares */
    nmlp_pool *pool;
    const nmlp_process_group *tensor_group; /* that shares the one model; its first member measures, the others call
                                               this too and have no results. NULL: this process alone */
    const char *split;                      /* as nmlp_split_choose takes it */
} nmlp_bench_model_options;

enum {
    NMLP_BENCH_MODELS_MAX = 8,
    NMLP_BENCH_BATCH_MAX = 64,
    NMLP_BENCH_BATCHES_MAX = 8,
    NMLP_BENCH_PREFILLS = 3,
    NMLP_BENCH_CASES_MAX = NMLP_BENCH_PREFILLS + NMLP_BENCH_BATCHES_MAX
};

typedef struct nmlp_bench_model_case {
    int prompt;           /* tokens of the prefill; 0: decode */
    int batch;            /* sequences that decode together */
    nmlp_spread tokens_s; /* of all sequences; median 0: longer than the model's context */
    nmlp_spread share;    /* of the probe: FLOPs of the weights for prefill, bytes of the weights for decode */
    double joules;        /* per token, median; 0: no energy can be read here */
    double probe;         /* of this CPU; 0: the model runs elsewhere */
    double speedup;       /* over the first model: median of ratios within a round */
    double ideal_speedup; /* from FLOPs or bytes */
} nmlp_bench_model_case;

typedef struct nmlp_bench_model_result {
    const char *dir;
    char device[300]; /* what runs, a copy: kernel set, or "cuda (NVIDIA H200)" */
    double weight_bytes;
    double read_seconds; /* of the whole file through read(), before the model is opened */
    double load_seconds; /* open, check, pack */
    double cache_bytes;  /* KV cache of the session */
    char split[300];     /* how processes share it (nmlp_split_choice_text); empty: one has all */
    double computed_ms;  /* of one decoded token, by the arithmetic of the choice; 0 as well */
    double rss_bytes;    /* peak of the process so far: says something for the first model only */
    nmlp_bench_model_case cases[NMLP_BENCH_CASES_MAX];
    int n_cases;
} nmlp_bench_model_result;

nmlp_status nmlp_bench_model_run(nmlp_bench_model_result results[], const nmlp_bench_model_options *options,
                                 nmlp_err *err);

#endif
