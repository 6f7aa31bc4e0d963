/* Multiple choice by log-likelihood: the choice whose continuation the model finds likeliest, after the summed
 * log-probability (acc) or that sum divided by the bytes of the choice (acc_norm).
 *
 * Context and continuation are encoded together; the continuation's tokens are those past the length of the encoded
 * context, whose white space at the end counts to the continuation. What the choices of a question share at their
 * beginning is run once where that pays (engine/score.h). A sequence longer than the model takes loses tokens at its
 * beginning, and is counted. */
#ifndef NMLP_EVAL_CHOICE_H
#define NMLP_EVAL_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "base/status.h"
#include "engine/engine.h"
#include "eval/questions.h"
#include "text/tokenizer.h"

typedef struct nmlp_choice_options {
    nmlp_bos bos;                  /* in front of every sequence; the harness takes NMLP_BOS_TEMPLATE */
    const char *stage;             /* name for the progress; may be NULL */
    const nmlp_progress *progress; /* may be NULL */
} nmlp_choice_options;

typedef struct nmlp_choice_result {
    int64_t n;
    double acc;
    double acc_stderr; /* of the mean, as lm-evaluation-harness: sqrt(p (1-p) / (n-1)) */
    double acc_norm;
    double acc_norm_stderr;
    int64_t *pred;       /* [n] */
    int64_t *pred_norm;  /* [n] */
    int64_t *first;      /* [n+1]: question i has loglik[first[i]..first[i+1]-1] */
    double *loglik;      /* [first[n]] */
    int64_t n_truncated; /* sequences cut to fit the model */
    int64_t n_run;       /* tokens computed */
    int64_t n_whole;     /* tokens it would have been without sharing */
    double seconds;      /* all of it; encoding included */
} nmlp_choice_result;

nmlp_status nmlp_choice_eval(nmlp_choice_result *result, const nmlp_engine *engine, const nmlp_tokenizer *tokenizer,
                             const nmlp_questions *questions, const nmlp_choice_options *options, nmlp_err *err);
void nmlp_choice_result_free(nmlp_choice_result *result);

/* Fills predictions and accuracies from the log-likelihoods; ties go to the first. */
void nmlp_choice_count(nmlp_choice_result *result, const nmlp_questions *questions);

#endif
