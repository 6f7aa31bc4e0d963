/* Log-probabilities of given tokens from hidden states: logits in blocks of rows, a log-softmax with its sum in f64.
 *
 * A row scorer belongs to one session. The caller lists targets (which row predicts which token), runs the
 * session with nmlp_row_scorer_rows as its callback, and finds log p(token) of every target. */
#ifndef NMLP_ENGINE_LOGPROB_H
#define NMLP_ENGINE_LOGPROB_H

#include <stdint.h>

#include "base/status.h"
#include "engine/session.h"

/* log(sum_i exp(logits[i])), n > 0. exp is taken in f32 (relative error below 3e-7), the sum in f64. */
double nmlp_log_sum_exp(const float *logits, int64_t n);

typedef struct nmlp_score_target {
    int64_t row; /* as the session's callback counts rows */
    int32_t token;
    int32_t text;   /* the caller's */
    double logprob; /* out */
} nmlp_score_target;

typedef struct nmlp_row_scorer nmlp_row_scorer;

nmlp_status nmlp_row_scorer_create(nmlp_row_scorer **out, const nmlp_session *session, nmlp_err *err);
void nmlp_row_scorer_destroy(nmlp_row_scorer *scorer);
/* Targets must be sorted by row; several may share one. Borrowed until the next begin. */
void nmlp_row_scorer_begin(nmlp_row_scorer *scorer, nmlp_score_target *targets, int64_t n_targets);
/* An nmlp_rows_fn; ctx is the scorer. */
void nmlp_row_scorer_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s);
/* Fails unless every target was reached and is finite. */
nmlp_status nmlp_row_scorer_end(nmlp_row_scorer *scorer, nmlp_err *err);

#endif
