#include "eval/choice.h"

#include <math.h>

#include "base/clock.h"
#include "base/mem.h"
#include "eval/choice_encode.h"

/* Choices of a question follow each other: what they share at their beginning is run once where that pays. */
static nmlp_status run_all(nmlp_choice_result *r, const nmlp_engine *engine, const nmlp_encoded *e,
                           const nmlp_choice_options *o, nmlp_err *err) {
    nmlp_score_options scoring = {.stage = o->stage ? o->stage : "choices", .progress = o->progress};
    for (int64_t i = 0; i < e->first[e->n]; i++) {
        e->sequences[i].loglik = &r->loglik[i];
        r->n_whole += e->sequences[i].n - 1;
    }
    return nmlp_score_texts(engine, e->sequences, e->first[e->n], &scoring, &r->n_run, err);
}

static double stderr_of(double p, int64_t n) { return n > 1 ? sqrt(p * (1 - p) / (double)(n - 1)) : NAN; }

void nmlp_choice_count(nmlp_choice_result *r, const nmlp_questions *questions) {
    int64_t n_right = 0, n_right_norm = 0;
    for (int64_t i = 0; i < r->n; i++) {
        const nmlp_question *q = &questions->items[i];
        const double *loglik = r->loglik + r->first[i];
        int64_t best = 0, best_norm = 0;
        for (int64_t c = 1; c < q->n_choices; c++) {
            if (loglik[c] > loglik[best]) best = c;
            if (loglik[c] / (double)q->choices[c].norm_bytes >
                loglik[best_norm] / (double)q->choices[best_norm].norm_bytes)
                best_norm = c;
        }
        r->pred[i] = best;
        r->pred_norm[i] = best_norm;
        n_right += best == q->gold;
        n_right_norm += best_norm == q->gold;
    }
    r->acc = (double)n_right / (double)r->n;
    r->acc_norm = (double)n_right_norm / (double)r->n;
    r->acc_stderr = stderr_of(r->acc, r->n);
    r->acc_norm_stderr = stderr_of(r->acc_norm, r->n);
}

static nmlp_status new_result(nmlp_choice_result *r, const nmlp_encoded *e, nmlp_err *err) {
    size_t n = (size_t)e->n;
    r->n = e->n;
    r->n_truncated = e->n_truncated;
    r->pred = nmlp_mem_new(n, sizeof *r->pred, err);
    r->pred_norm = nmlp_mem_new(n, sizeof *r->pred_norm, err);
    r->first = nmlp_mem_new(n + 1, sizeof *r->first, err);
    r->loglik = nmlp_mem_new((size_t)e->first[n], sizeof *r->loglik, err);
    if (!r->pred || !r->pred_norm || !r->first || !r->loglik) return NMLP_E_NOMEM;
    for (size_t i = 0; i <= n; i++) r->first[i] = e->first[i];
    return NMLP_OK;
}

nmlp_status nmlp_choice_eval(nmlp_choice_result *result, const nmlp_engine *engine, const nmlp_tokenizer *tokenizer,
                             const nmlp_questions *questions, const nmlp_choice_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_encoded encoded;
    double start = nmlp_clock_seconds();
    *result = (nmlp_choice_result){0};
    NMLP_RETURN_IF_FAILED(nmlp_encoded_create(&encoded, questions, tokenizer, options->bos,
                                              nmlp_engine_model(engine)->config.max_positions, nmlp_engine_pool(engine),
                                              err));
    NMLP_TRY(new_result(result, &encoded, err));
    NMLP_TRY(run_all(result, engine, &encoded, options, err));
    nmlp_choice_count(result, questions);
    result->seconds = nmlp_clock_seconds() - start;
out:
    nmlp_encoded_destroy(&encoded);
    if (st != NMLP_OK) nmlp_choice_result_free(result);
    return st;
}

void nmlp_choice_result_free(nmlp_choice_result *r) {
    nmlp_mem_free(r->pred);
    nmlp_mem_free(r->pred_norm);
    nmlp_mem_free(r->first);
    nmlp_mem_free(r->loglik);
    *r = (nmlp_choice_result){0};
}
