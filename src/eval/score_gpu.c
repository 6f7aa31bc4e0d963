#include "eval/score_gpu.h"

#include <math.h>

#include "base/mem.h"
#include "engine/gpu.h"

/* Sequences that run together. */
struct batch {
    nmlp_cuda_text *texts;
    float *logprobs; /* of all of them, one after the other */
    int64_t n_texts;
    int64_t n_rows;
};

static nmlp_status add_up(double *loglik, const nmlp_sequence *sequences, const struct batch *b, nmlp_err *err) {
    for (int64_t i = 0; i < b->n_texts; i++) {
        loglik[i] = 0;
        for (int64_t t = sequences[i].score; t < sequences[i].n; t++) loglik[i] += (double)b->texts[i].logprob[t - 1];
        if (!isfinite(loglik[i]))
            return nmlp_fail(err, NMLP_E_NUMERIC,
                             "the log-probability of a token between positions %lld and %lld is not finite",
                             (long long)sequences[i].score, (long long)sequences[i].n);
    }
    return NMLP_OK;
}

static void fill(struct batch *b, const nmlp_sequence *sequences, int64_t n, int64_t most) {
    b->n_texts = 0;
    b->n_rows = 0;
    for (int64_t i = 0; i < n && b->n_rows + sequences[i].n - 1 <= most; i++) {
        b->texts[b->n_texts++] =
            (nmlp_cuda_text){.ids = sequences[i].ids, .n = sequences[i].n, .logprob = b->logprobs + b->n_rows};
        b->n_rows += sequences[i].n - 1;
    }
}

static nmlp_status run(double *loglik, nmlp_cuda_scorer *scorer, struct batch *b, const nmlp_sequence *sequences,
                       int64_t n, int64_t n_total, nmlp_gpu_scoring *scoring, nmlp_err *err) {
    for (int64_t at = 0; at < n; at += b->n_texts) {
        fill(b, sequences + at, n - at, nmlp_cuda_scorer_tokens(scorer));
        NMLP_RETURN_IF_FAILED(nmlp_cuda_scorer_run(scorer, b->texts, b->n_texts, err));
        NMLP_RETURN_IF_FAILED(add_up(loglik + at, sequences + at, b, err));
        scoring->n_run += b->n_rows;
        if (!nmlp_progress_update(scoring->progress, scoring->stage, (double)scoring->n_run, (double)n_total, "tokens"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "stopped after %lld of %lld tokens", (long long)scoring->n_run,
                             (long long)n_total);
    }
    return NMLP_OK;
}

nmlp_status nmlp_score_on_gpu(double *loglik, const nmlp_engine *engine, const nmlp_sequence *sequences, int64_t n,
                              nmlp_gpu_scoring *scoring, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_cuda_scorer *scorer = NULL;
    struct batch batch = {0};
    int64_t longest = 1;
    int64_t n_total = 0;
    for (int64_t i = 0; i < n; i++) {
        n_total += sequences[i].n - 1;
        if (sequences[i].n - 1 > longest) longest = sequences[i].n - 1;
    }
    scoring->n_run = 0;
    NMLP_TRY(nmlp_gpu_scorer_create(&scorer, engine, longest, err));
    size_t most = (size_t)nmlp_cuda_scorer_tokens(scorer);
    batch.texts = nmlp_mem_new(most, sizeof *batch.texts, err);
    batch.logprobs = nmlp_mem_new(most, sizeof *batch.logprobs, err);
    if (!batch.texts || !batch.logprobs) NMLP_TRY(NMLP_E_NOMEM);
    st = run(loglik, scorer, &batch, sequences, n, n_total, scoring, err);
out:
    nmlp_mem_free(batch.texts);
    nmlp_mem_free(batch.logprobs);
    nmlp_cuda_scorer_destroy(scorer);
    return st;
}
