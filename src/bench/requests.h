/* Many sequences of one model at once, on any device: prompts together, then tokens together, warm; beside each round
 * what the device can do at best. */
#ifndef NMLP_BENCH_REQUESTS_H
#define NMLP_BENCH_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "bench/samples.h"

enum { NMLP_BENCH_REQUESTS_MAX = 16 };

typedef struct nmlp_bench_requests_options {
    const char *dir;
    const char *device; /* "cpu", "cuda", "auto" */
    const char *isa;    /* NULL: the fastest */
    bool bf16;          /* activations may be rounded */
    int64_t batches[NMLP_BENCH_REQUESTS_MAX];
    int n_batches;
    int64_t prompt;   /* tokens of every sequence */
    int64_t generate; /* and tokens generated, the first of them counted with the prompt */
    int rounds;
    nmlp_pool *pool;
} nmlp_bench_requests_options;

typedef struct nmlp_bench_requests_result {
    char device[300]; /* what runs: "cuda (NVIDIA H200)" */
    double load_seconds;
    double first_ms; /* prompt of one sequence in the first round, which is not warm */
    nmlp_spread prefill_tokens_s;
    nmlp_spread decode_tokens_s; /* of all sequences together */
    nmlp_spread step_ms;         /* of one decode step */
    nmlp_spread prefill_share; /* FLOPs of weights and attention, of nmlp_limits_gflops; median 0: that is not known */
    nmlp_spread decode_share;  /* bytes of the weights, of nmlp_limits_gbs; likewise */
    char no_shares[NMLP_ERR_MESSAGE_MAX]; /* why they are not known; empty: they are */
} nmlp_bench_requests_result;

/* results [n_batches] */
nmlp_status nmlp_bench_requests_run(nmlp_bench_requests_result results[], const nmlp_bench_requests_options *options,
                                    nmlp_err *err);

#endif
