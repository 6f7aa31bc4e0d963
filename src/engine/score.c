#include "engine/score.h"

#include <inttypes.h>

#include "engine/backend.h"
#include "engine/engine_internal.h"

struct run {
    const nmlp_backend *backend;
    const nmlp_score_options *options;
    int64_t n_done;
    int64_t n_total;
};

static bool on_rows(void *ctx, int64_t n_rows) {
    struct run *r = ctx;
    const nmlp_score_options *o = r->options;
    r->n_done += n_rows;
    return nmlp_progress_update(o->progress, o->stage, (double)r->n_done, (double)r->n_total, "tokens");
}

/* How many of the n texts one call takes. */
static int64_t take(const struct run *r, const nmlp_score_text *texts, int64_t n, int64_t most, int64_t *n_rows) {
    int64_t i = 0;
    *n_rows = 0;
    for (; i < n; i++) {
        int64_t rows = r->backend->scorer_rows(&texts[i], i > 0 ? &texts[i - 1] : NULL);
        if (i > 0 && *n_rows + rows > most) break;
        *n_rows += rows;
    }
    return i;
}

static nmlp_status check(const nmlp_engine *engine, const nmlp_score_text *t, int64_t i, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(engine)->config;
    if (t->n < 2 || t->score < 1 || t->score >= t->n || t->n - 1 > c->max_positions)
        return nmlp_fail(err, NMLP_E_ARG,
                         "text %" PRId64 " has %" PRId64 " tokens, scored from %" PRId64 "; 2 to %" PRId64
                         " can be scored, from 1",
                         i, t->n, t->score, c->max_positions + 1);
    for (int64_t k = 0; k < t->n; k++) {
        if (t->ids[k] < 0 || t->ids[k] >= c->vocab)
            return nmlp_fail(err, NMLP_E_ARG,
                             "text %" PRId64 ": token id %d at position %" PRId64
                             " is outside the vocabulary of %" PRId64,
                             i, t->ids[k], k, c->vocab);
    }
    return NMLP_OK;
}

nmlp_status nmlp_score_texts(const nmlp_engine *engine, const nmlp_score_text *texts, int64_t n,
                             const nmlp_score_options *options, int64_t *n_run, nmlp_err *err) {
    struct run r = {.backend = nmlp_engine_backend(engine), .options = options};
    nmlp_status st = NMLP_OK;
    void *scorer = NULL;
    int64_t longest = 1, some, rows;
    *n_run = 0;
    for (int64_t i = 0; i < n; i++) {
        NMLP_RETURN_IF_FAILED(check(engine, &texts[i], i, err));
        if (texts[i].n - 1 > longest) longest = texts[i].n - 1;
    }
    NMLP_RETURN_IF_FAILED(r.backend->scorer_create(&scorer, nmlp_engine_weights(engine), longest, err));
    int64_t most = r.backend->scorer_tokens(scorer);
    for (int64_t at = 0; at < n; at += some) {
        some = take(&r, texts + at, n - at, most, &rows);
        r.n_total += rows;
    }
    for (int64_t at = 0; at < n; at += some) {
        some = take(&r, texts + at, n - at, most, &rows);
        NMLP_TRY(r.backend->scorer_run(scorer, texts + at, some, on_rows, &r, err));
    }
out:
    *n_run = r.n_done;
    r.backend->scorer_destroy(scorer);
    if (st == NMLP_E_INTERRUPTED)
        nmlp_fail(err, st, "stopped after %" PRId64 " of %" PRId64 " tokens", r.n_done, r.n_total);
    return st;
}
