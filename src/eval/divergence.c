#include "eval/divergence.h"

#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "base/ints.h"
#include "base/mem.h"
#include "engine/session.h"

enum { LOGIT_ROWS = 128 };

/* Some rows of logits of both models; one row is one task. */
struct compare {
    const float *want, *got; /* [rows, V] of the reference and of the model */
    const int32_t *next;     /* [rows] the token that follows */
    int64_t vocab;
    double kl[LOGIT_ROWS], nll[LOGIT_ROWS], nll_before[LOGIT_ROWS];
    bool same_top[LOGIT_ROWS];
};

static int64_t top_of(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static void compare_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    struct compare *c = ctx;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *want = c->want + r * c->vocab, *got = c->got + r * c->vocab;
        nmlp_softmax_view p = nmlp_softmax_compare(want, got, c->vocab);
        nmlp_softmax_view q = nmlp_softmax_compare(got, NULL, c->vocab);
        c->kl[r] = p.mean_difference - p.log_sum + q.log_sum;
        c->nll[r] = q.log_sum - (double)got[c->next[r]];
        c->nll_before[r] = p.log_sum - (double)want[c->next[r]];
        c->same_top[r] = top_of(want, c->vocab) == top_of(got, c->vocab);
    }
}

struct side {
    nmlp_session *session;
    float *rows;   /* [ctx, H] hidden states of a window, final norm applied */
    float *logits; /* [LOGIT_ROWS, V] */
    int64_t hidden;
};

struct comparison {
    struct side reference, model;
    nmlp_pool *pool;
    struct compare compare;
    nmlp_divergence *result;
    double n_same;
    double rise_squares; /* sum over positions */
};

static nmlp_status side_open(struct side *s, const nmlp_engine *engine, int64_t ctx, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(engine)->config;
    s->hidden = c->hidden;
    NMLP_RETURN_IF_FAILED(nmlp_session_create(&s->session, engine, ctx, ctx, false, err));
    s->rows = nmlp_mem_new((size_t)(ctx * c->hidden), sizeof *s->rows, err);
    s->logits = nmlp_mem_new((size_t)(LOGIT_ROWS * c->vocab), sizeof *s->logits, err);
    return s->rows && s->logits ? NMLP_OK : NMLP_E_NOMEM;
}

static void side_close(struct side *s) {
    nmlp_session_destroy(s->session);
    nmlp_mem_free(s->rows);
    nmlp_mem_free(s->logits);
}

static void keep_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t n) {
    struct side *s = ctx;
    (void)session;
    for (int64_t i = 0; i < n * s->hidden; i++) s->rows[first * s->hidden + i] = rows[i];
}

static nmlp_status side_run(struct side *s, const int32_t *ids, int64_t n, nmlp_err *err) {
    nmlp_session_truncate(s->session, 0);
    return nmlp_session_append(s->session, ids, n, keep_rows, s, err);
}

static nmlp_status run_window(struct comparison *c, const int32_t *ids, int64_t n, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(side_run(&c->reference, ids, n, err));
    NMLP_RETURN_IF_FAILED(side_run(&c->model, ids, n, err));
    struct compare *k = &c->compare;
    for (int64_t at = 0; at < n - 1; at += LOGIT_ROWS) {
        int64_t rows = nmlp_min(LOGIT_ROWS, n - 1 - at);
        nmlp_session_logits(c->reference.session, c->reference.rows + at * c->reference.hidden, rows,
                            c->reference.logits);
        nmlp_session_logits(c->model.session, c->model.rows + at * c->model.hidden, rows, c->model.logits);
        k->next = ids + at + 1;
        nmlp_pool_for(c->pool, rows, 1, compare_rows, k);
        for (int64_t i = 0; i < rows; i++) {
            c->result->kl += k->kl[i];
            c->result->nll += k->nll[i];
            c->result->nll_before += k->nll_before[i];
            c->n_same += k->same_top[i];
            c->rise_squares += (k->nll[i] - k->nll_before[i]) * (k->nll[i] - k->nll_before[i]);
        }
        c->result->n_scored += rows;
    }
    return NMLP_OK;
}

static nmlp_status run_windows(struct comparison *c, const int32_t *ids, const nmlp_text_windows *windows,
                               const nmlp_ppl_options *o, nmlp_err *err) {
    nmlp_text_window window = {0};
    while (nmlp_text_window_next(windows, &window)) {
        NMLP_RETURN_IF_FAILED(run_window(c, ids + window.begin, window.end - window.begin, err));
        if (!nmlp_progress_update(o->progress, o->stage ? o->stage : "divergence", (double)window.end,
                                  (double)windows->n_tokens, "tokens"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "stopped after %" PRId64 " of %" PRId64 " tokens", window.end,
                             windows->n_tokens);
    }
    return NMLP_OK;
}

static nmlp_status check_pair(const nmlp_engine *reference, const nmlp_engine *engine, const nmlp_ppl_options *o,
                              nmlp_err *err) {
    const nmlp_model *a = nmlp_engine_model(reference), *b = nmlp_engine_model(engine);
    if (a->config.vocab != b->config.vocab)
        return nmlp_fail(err, NMLP_E_ARG,
                         "%s has a vocabulary of %" PRId64 " and %s one of %" PRId64 ": they cannot be compared",
                         b->checkpoint.dir, b->config.vocab, a->checkpoint.dir, a->config.vocab);
    if (o->rolling || o->stride != o->ctx)
        return nmlp_fail_field(err, NMLP_E_ARG, o->rolling ? "rolling" : "stride",
                               "does not go with a comparison of two models");
    return NMLP_OK;
}

nmlp_status nmlp_divergence_ids(nmlp_divergence *r, const nmlp_engine *reference, const nmlp_engine *engine,
                                const int32_t *ids, int64_t n, const nmlp_ppl_options *options, nmlp_err *err) {
    nmlp_ppl_options o = *options;
    nmlp_status st = NMLP_OK;
    *r = (nmlp_divergence){0};
    NMLP_RETURN_IF_FAILED(nmlp_ppl_options_check(&o, &nmlp_engine_model(engine)->config, err));
    NMLP_RETURN_IF_FAILED(check_pair(reference, engine, &o, err));
    if (o.max_tokens && n > o.max_tokens) n = o.max_tokens;
    nmlp_text_windows windows = {
        .n_tokens = n, .ctx = o.ctx, .stride = o.stride, .drop_partial = !o.keep_partial && n >= o.ctx};
    if (n < 2) {
        nmlp_fail(err, NMLP_E_LIMIT, "a text of %" PRId64 " tokens has nothing to compare", n);
        nmlp_fail_hint(err, "2 tokens are needed at least");
        return NMLP_E_LIMIT;
    }
    double start = nmlp_clock_seconds();
    struct comparison *c = nmlp_mem_new(1, sizeof *c, err);
    if (!c) return NMLP_E_NOMEM;
    c->pool = nmlp_engine_pool(engine);
    c->result = r;
    NMLP_TRY(side_open(&c->reference, reference, o.ctx, err));
    NMLP_TRY(side_open(&c->model, engine, o.ctx, err));
    c->compare.want = c->reference.logits;
    c->compare.got = c->model.logits;
    c->compare.vocab = nmlp_engine_model(engine)->config.vocab;
    NMLP_TRY(run_windows(c, ids, &windows, &o, err));
    double scored = (double)r->n_scored, rise = (r->nll - r->nll_before) / scored;
    *r = (nmlp_divergence){.n_tokens = n,
                           .n_scored = r->n_scored,
                           .kl = r->kl / scored,
                           .nll = r->nll / scored,
                           .nll_before = r->nll_before / scored,
                           .rise_error = sqrt(fmax(c->rise_squares / scored - rise * rise, 0) / scored),
                           .same_top = c->n_same / scored,
                           .seconds = nmlp_clock_seconds() - start};
out:
    side_close(&c->reference);
    side_close(&c->model);
    nmlp_mem_free(c);
    return st;
}

nmlp_status nmlp_divergence_text(nmlp_divergence *r, const nmlp_engine *reference, const nmlp_engine *engine,
                                 const nmlp_tokenizer *tokenizer, const char *text, size_t len,
                                 const nmlp_ppl_options *o, nmlp_err *err) {
    nmlp_ids ids;
    nmlp_ids_init(&ids);
    nmlp_status st = nmlp_tokenizer_encode(tokenizer, text, len, o->bos ? NMLP_BOS_ALWAYS : NMLP_BOS_NONE,
                                           o->parse_special, &ids, err);
    if (st == NMLP_OK) st = nmlp_divergence_ids(r, reference, engine, ids.data, (int64_t)ids.len, o, err);
    nmlp_ids_fini(&ids);
    return st;
}

nmlp_divergence nmlp_divergence_mean(const nmlp_divergence *results, size_t n) {
    nmlp_divergence mean = {0};
    for (size_t i = 0; i < n; i++) {
        mean.n_tokens += results[i].n_tokens;
        mean.n_scored += results[i].n_scored;
        mean.kl += results[i].kl / (double)n;
        mean.nll += results[i].nll / (double)n;
        mean.nll_before += results[i].nll_before / (double)n;
        mean.same_top += results[i].same_top / (double)n;
        mean.rise_error += results[i].rise_error * results[i].rise_error; /* of independent texts */
        mean.seconds += results[i].seconds;
    }
    mean.rise_error = n ? sqrt(mean.rise_error) / (double)n : 0;
    return mean;
}
