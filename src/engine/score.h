/* Log-likelihoods of texts under a model, on any device. */
#ifndef NMLP_ENGINE_SCORE_H
#define NMLP_ENGINE_SCORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "base/status.h"
#include "engine/engine.h"

/* A text of n >= 2 tokens: tokens score..n-1 are scored, given all before them. All but the last are run. */
typedef struct nmlp_score_text {
    const int32_t *ids;
    int64_t n;
    int64_t score;  /* 1 or more */
    double *loglik; /* out: sum of log p(ids[i] | ids[0..i-1]) over the scored tokens */
} nmlp_score_text;

/* Rows computed since the last call; false stops. */
typedef bool nmlp_score_on_rows(void *ctx, int64_t n_rows);

typedef struct nmlp_score_options {
    const char *stage;             /* name for the progress */
    const nmlp_progress *progress; /* may be NULL */
} nmlp_score_options;

/* Texts that begin alike should follow each other: what a text shares with the one before it may be run once. `n_run`
 * receives the positions computed. The members of the engine's process group each score a share; all receive all
 * results, those that one process has. */
nmlp_status nmlp_score_texts(const nmlp_engine *engine, const nmlp_score_text *texts, int64_t n,
                             const nmlp_score_options *options, int64_t *n_run, nmlp_err *err);

#endif
