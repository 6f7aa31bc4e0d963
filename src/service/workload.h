/* What a model is used for, as a sum of forward passes: what "fast" means. And how long models take for it. */
#ifndef NMLP_SERVICE_WORKLOAD_H
#define NMLP_SERVICE_WORKLOAD_H

#include "base/pool.h"
#include "base/status.h"
#include "checkpoint/config.h"

/* One unit of it. */
typedef struct nmlp_workload {
    const char *name; /* "chat", "prompt", "batch" */
    int64_t prompt;   /* tokens read at once; 0: none */
    int64_t generate; /* tokens written by each sequence */
    int64_t batch;    /* sequences that write together */
} nmlp_workload;

enum { NMLP_WORKLOAD_BATCH_MAX = 64, NMLP_WORKLOAD_PROMPT = 512 };
/* Models that are measured beside each other are in memory together, up to so many. */
enum { NMLP_WORKLOAD_TOGETHER_BYTES = 2000000000 };

/* "chat": 256 tokens are read and 256 written; "prompt": 512 are read; "batch=N": N sequences write a token each. */
nmlp_status nmlp_workload_parse(nmlp_workload *workload, const char *text, nmlp_err *err);
/* "a prompt of 256 tokens and 256 generated" */
void nmlp_workload_text(char text[80], const nmlp_workload *workload);

typedef struct nmlp_workload_timer {
    nmlp_workload workload;
    const char *target; /* "cpu", "cuda", or a Trainium: a built-in machine or a file */
    const char *isa;    /* CPU; NULL: the fastest */
    nmlp_pool *pool;
    int rounds;            /* of measuring */
    double decode_seconds; /* of a sample of decoding, about */
} nmlp_workload_timer;

bool nmlp_target_is_trainium(const char *target);

/* Milliseconds of one unit for each model, measured in turns (CPU, CUDA) or simulated (Trainium). Times of the first
 * model are its medians; those of others follow from the median ratio to it within a round. */
nmlp_status nmlp_workload_time(const nmlp_workload_timer *timer, const char *const *dirs, int n, double *ms,
                               nmlp_err *err);

#endif
