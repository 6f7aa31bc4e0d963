#include "engine/score.h"

#include <inttypes.h>

#include "base/ints.h"
#include "base/mem.h"
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

/* All n texts on this process. */
static nmlp_status score_here(struct run *r, const nmlp_engine *engine, const nmlp_score_text *texts, int64_t n,
                              nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    void *scorer = NULL;
    int64_t longest = 1, some, rows;
    for (int64_t i = 0; i < n; i++) longest = nmlp_max(longest, texts[i].n - 1);
    NMLP_RETURN_IF_FAILED(r->backend->scorer_create(&scorer, nmlp_engine_weights(engine), longest, err));
    int64_t most = r->backend->scorer_tokens(scorer);
    for (int64_t at = 0; at < n; at += some) {
        some = take(r, texts + at, n - at, most, &rows);
        r->n_total += rows;
    }
    for (int64_t at = 0; at < n; at += some) {
        some = take(r, texts + at, n - at, most, &rows);
        NMLP_TRY(r->backend->scorer_run(scorer, texts + at, some, on_rows, r, err));
    }
out:
    r->backend->scorer_destroy(scorer);
    if (st == NMLP_E_INTERRUPTED)
        nmlp_fail(err, st, "stopped after %" PRId64 " of %" PRId64 " tokens", r->n_done, r->n_total);
    return st;
}

/* Shares of about equal rows, cut only between texts that share no beginning: first [size+1]. */
static void cut_shares(const struct run *r, const nmlp_process_group *group, const nmlp_score_text *texts, int64_t n,
                       int64_t *first) {
    int64_t total = 0, before = 0;
    int member = 1;
    for (int64_t i = 0; i < n; i++) total += r->backend->scorer_rows(&texts[i], i > 0 ? &texts[i - 1] : NULL);
    first[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t rows = r->backend->scorer_rows(&texts[i], i > 0 ? &texts[i - 1] : NULL);
        bool apart = rows == texts[i].n - 1;
        while (apart && member < group->size && before >= nmlp_group_share(group, total, member)) first[member++] = i;
        before += rows;
    }
    while (member <= group->size) first[member++] = n;
}

/* A text's result does not depend on the texts beside it, so that the members' results are those of one process. */
static nmlp_status score_together(struct run *r, const nmlp_engine *engine, const nmlp_score_text *texts, int64_t n,
                                  nmlp_err *err) {
    const nmlp_process_group *group = nmlp_engine_group(engine);
    nmlp_status st = NMLP_OK;
    size_t size = (size_t)group->size;
    int64_t *first = nmlp_mem_new(size + 1, sizeof *first, err);
    double *values = nmlp_mem_new((size_t)n, sizeof *values, err);
    double *rows = nmlp_mem_new(size, sizeof *rows, err);
    if (!first || !values || !rows) NMLP_TRY(NMLP_E_NOMEM);
    cut_shares(r, group, texts, n, first);
    int64_t begin = first[group->rank], end = first[group->rank + 1];
    if (begin < end) NMLP_TRY(score_here(r, engine, texts + begin, end - begin, err));
    for (int64_t i = begin; i < end; i++) values[i] = *texts[i].loglik;
    NMLP_TRY(nmlp_group_gather(group, values, sizeof *values, first, err));
    for (int64_t i = 0; i < n; i++) *texts[i].loglik = values[i];
    rows[group->rank] = (double)r->n_done;
    for (size_t k = 0; k <= size; k++) first[k] = (int64_t)k;
    NMLP_TRY(nmlp_group_gather(group, rows, sizeof *rows, first, err));
    r->n_done = 0;
    for (size_t k = 0; k < size; k++) r->n_done += (int64_t)rows[k];
out:
    nmlp_mem_free(first);
    nmlp_mem_free(values);
    nmlp_mem_free(rows);
    return st;
}

nmlp_status nmlp_score_texts(const nmlp_engine *engine, const nmlp_score_text *texts, int64_t n,
                             const nmlp_score_options *options, int64_t *n_run, nmlp_err *err) {
    struct run r = {.backend = nmlp_engine_backend(engine), .options = options};
    *n_run = 0;
    for (int64_t i = 0; i < n; i++) NMLP_RETURN_IF_FAILED(check(engine, &texts[i], i, err));
    nmlp_status st = nmlp_group_size(nmlp_engine_group(engine)) > 1 ? score_together(&r, engine, texts, n, err)
                                                                    : score_here(&r, engine, texts, n, err);
    *n_run = r.n_done;
    return st;
}
