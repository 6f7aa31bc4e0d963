/* Whole models as another program measured them: what llama.cpp's llama-bench (CSV, JSON or JSON lines) and
 * llama-batched-bench (JSON lines) write, read so that `bench model` can put it beside its own results. */
#ifndef NMLP_BENCH_PEER_RESULTS_H
#define NMLP_BENCH_PEER_RESULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { NMLP_PEER_MODEL_MAX = 64, NMLP_PEER_TEST_MAX = 160 };

typedef struct nmlp_peer_result {
    bool decode;
    int64_t batch;    /* sequences together */
    int64_t prompt;   /* tokens of each prompt; of a decode: tokens that were there before */
    int64_t generate; /* tokens of each sequence; 0: a prefill */
    int64_t threads;  /* of a CPU; 0: not said */
    double tokens_s;  /* of all sequences */
    char model[NMLP_PEER_MODEL_MAX];
} nmlp_peer_result;

typedef struct nmlp_peer_results {
    nmlp_peer_result *rows;
    size_t n;
    size_t capacity;
} nmlp_peer_results;

/* What is to be compared. */
typedef struct nmlp_peer_test {
    bool decode;
    int64_t batch;
    int64_t prompt;
    int64_t generate; /* of a decode */
    int64_t threads;  /* 0: another device than the CPU, whose threads do not matter */
} nmlp_peer_test;

/* Refuses a file without any usable result. */
nmlp_status nmlp_peer_results_load(nmlp_peer_results *results, const char *path, nmlp_err *err);
void nmlp_peer_results_fini(nmlp_peer_results *results);

/* The result that compares: the same number of sequences, and the same prompt of a prefill. Of several the one with the
 * nearest number of threads, then with the nearest lengths, then the fastest. NULL: there is none. */
const nmlp_peer_result *nmlp_peer_results_find(const nmlp_peer_results *results, nmlp_peer_test test);

/* What was measured, in short: "llama 1B BF16 tg64 d128 x8 t16". */
void nmlp_peer_result_describe(char text[NMLP_PEER_TEST_MAX], const nmlp_peer_result *result);

#endif
