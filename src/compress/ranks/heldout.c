#include "compress/ranks/heldout.h"

#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"

enum { LOGIT_ROWS = 128 };
static const int64_t cached_logits_bytes = (int64_t)400 << 20;

/* Compares a few rows of logits; one row is one task. */
struct compare {
    const float *want, *got; /* [rows, V] */
    const int32_t *ids;      /* of the window, from the first row's position on */
    int64_t step;
    int64_t vocab;
    double *kl, *nll; /* [rows] */
};

static void compare_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct compare *c = ctx;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *got = c->got + r * c->vocab;
        nmlp_softmax_view p = nmlp_softmax_compare(c->want + r * c->vocab, got, c->vocab);
        nmlp_softmax_view q = nmlp_softmax_compare(got, NULL, c->vocab);
        c->kl[r] = p.mean_difference - p.log_sum + q.log_sum;
        c->nll[r] = q.log_sum - (double)got[c->ids[r * c->step + 1]];
    }
}

/* Of one scored position. */
struct row_loss {
    double kl, nll;
};

/* Scores windows; every buffer is for one block of rows. */
struct scorer {
    const nmlp_heldout *heldout;
    const nmlp_engine *engine;
    nmlp_session *session;
    int64_t vocab;
    int64_t block; /* rows of logits at a time */
    float *rows;   /* [n_scored, H] final hidden states of a window */
    float *want;   /* [block, V] */
    float *got;
    const nmlp_linear *head; /* that makes `got`; NULL: the engine's */
    void *head_workspace;
    struct row_loss *losses; /* [n_heldout, n_scored] */
};

static nmlp_status scorer_open(struct scorer *s, const nmlp_heldout *h, const nmlp_engine *engine, nmlp_err *err) {
    int64_t context = h->windows->context;
    *s = (struct scorer){.heldout = h, .engine = engine, .vocab = nmlp_engine_model(engine)->config.vocab};
    s->block = nmlp_min(LOGIT_ROWS, context);
    NMLP_RETURN_IF_FAILED(nmlp_session_create(&s->session, engine, context, context, false, err));
    s->rows = nmlp_mem_new((size_t)(h->n_scored * h->hidden), sizeof *s->rows, err);
    s->want = nmlp_mem_new((size_t)(s->block * s->vocab), sizeof *s->want, err);
    s->got = nmlp_mem_new((size_t)(s->block * s->vocab), sizeof *s->got, err);
    s->losses = nmlp_mem_new((size_t)(h->windows->n_heldout * h->n_scored), sizeof *s->losses, err);
    return s->rows && s->want && s->got && s->losses ? NMLP_OK : NMLP_E_NOMEM;
}

static void scorer_close(struct scorer *s) {
    nmlp_session_destroy(s->session);
    nmlp_mem_free(s->rows);
    nmlp_mem_free(s->want);
    nmlp_mem_free(s->got);
    nmlp_mem_free(s->head_workspace);
    nmlp_mem_free(s->losses);
}

/* Means over the first n_windows windows, which were scored. */
static nmlp_loss scorer_loss(const struct scorer *s, int64_t n_windows) {
    int64_t n = n_windows * s->heldout->n_scored;
    double kl = 0, nll = 0;
    for (int64_t i = 0; i < n; i++) {
        kl += s->losses[i].kl;
        nll += s->losses[i].nll;
    }
    return (nmlp_loss){.kl = kl / (double)nmlp_max(n, 1), .nll = nll / (double)nmlp_max(n, 1), .n_tokens = n};
}

/* items of windows, `window_bytes` each, that the processes of the group made by shares; of the first n_windows. */
static nmlp_status gather_windows(const nmlp_heldout *h, void *items, size_t window_bytes, int64_t n_windows,
                                  int64_t n_shared, nmlp_err *err) {
    if (nmlp_group_size(h->group) == 1) return NMLP_OK;
    int64_t *first = nmlp_mem_new((size_t)h->group->size + 1, sizeof *first, err);
    if (!first) return NMLP_E_NOMEM;
    for (int k = 0; k <= h->group->size; k++) first[k] = nmlp_min(nmlp_group_share(h->group, n_shared, k), n_windows);
    nmlp_status st = nmlp_group_gather(h->group, items, window_bytes, first, err);
    nmlp_mem_free(first);
    return st;
}

/* The dense model's logits of rows at.. of a window. */
static const float *want_of(struct scorer *s, int64_t window, int64_t at, int64_t n) {
    const nmlp_heldout *h = s->heldout;
    int64_t first = window * h->n_scored + at;
    if (window < h->n_cached) return h->logits + first * s->vocab;
    nmlp_session_logits(s->session, h->reference + first * h->hidden, n, s->want);
    return s->want;
}

/* Final hidden states of the scored positions, from rows [context, H] behind the last layer. */
static void final_rows(const struct scorer *s, const float *rows, float *out) {
    const nmlp_heldout *h = s->heldout;
    for (int64_t i = 0; i < h->n_scored; i++)
        memcpy(out + i * h->hidden, rows + i * h->step * h->hidden, (size_t)h->hidden * sizeof *out);
    nmlp_session_final_norm(s->session, out, h->n_scored, out);
}

/* As the engine makes logits, by another matrix. */
static void run_head(const struct scorer *s, const float *rows, int64_t n) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    nmlp_pool *pool = nmlp_engine_pool(s->engine);
    nmlp_linear_run(s->head, s->got, rows, n, s->head_workspace, pool);
    if (c->logit_divisor != 1) nmlp_multiply(s->got, s->got, (float)(1 / c->logit_divisor), n * c->vocab, pool);
    if (c->logit_softcap > 0)
        nmlp_softcap(s->got, (float)(1 / c->logit_softcap), (float)c->logit_softcap, n * c->vocab, pool);
}

/* Of the final hidden states in s->rows. */
static void score_final_rows(struct scorer *s, int64_t window) {
    const nmlp_heldout *h = s->heldout;
    const nmlp_calib_windows *w = h->windows;
    const int32_t *ids = w->ids + (w->n_calib + window) * w->context;
    double kl[LOGIT_ROWS], nll[LOGIT_ROWS];
    for (int64_t at = 0; at < h->n_scored; at += s->block) {
        int64_t n = nmlp_min(s->block, h->n_scored - at);
        const float *want = want_of(s, window, at, n);
        if (s->head)
            run_head(s, s->rows + at * h->hidden, n);
        else
            nmlp_session_logits(s->session, s->rows + at * h->hidden, n, s->got);
        struct compare compare = {.want = want,
                                  .got = s->got,
                                  .ids = ids + at * h->step,
                                  .step = h->step,
                                  .vocab = s->vocab,
                                  .kl = kl,
                                  .nll = nll};
        nmlp_compress_work before = nmlp_compress_times_enter(h->times, NMLP_COMPRESS_WORK_COMPARE);
        nmlp_pool_for(nmlp_engine_pool(s->engine), n, 1, compare_rows, &compare);
        nmlp_compress_times_enter(h->times, before);
        for (int64_t i = 0; i < n; i++)
            s->losses[window * h->n_scored + at + i] = (struct row_loss){.kl = kl[i], .nll = nll[i]};
    }
}

static void score_window(struct scorer *s, int64_t window, const float *rows) {
    final_rows(s, rows, s->rows);
    score_final_rows(s, window);
}

static void cache_logits(struct scorer *s, nmlp_heldout *h, int64_t window) {
    for (int64_t at = 0; at < h->n_scored; at += s->block) {
        int64_t row = window * h->n_scored + at;
        nmlp_session_logits(s->session, h->reference + row * h->hidden, nmlp_min(s->block, h->n_scored - at),
                            h->logits + row * s->vocab);
    }
}

static void run_layer(const nmlp_heldout *h, nmlp_session *session, int64_t layer, float *rows, int64_t n_windows) {
    int64_t context = h->windows->context;
    for (int64_t i = 0; i < n_windows; i++)
        nmlp_session_run_layer(session, layer, rows + i * context * h->hidden, 0, context);
}

/* Through a layer as the engine has it. */
static nmlp_status run_windows(struct scorer *s, int64_t layer, float *rows, int64_t n_windows, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_engine_hold_layer(s->engine, layer, err));
    run_layer(s->heldout, s->session, layer, rows, n_windows);
    return NMLP_OK;
}

/* Windows begin..end-1; rows [end-begin, context, H]: room for them. */
static nmlp_status run_dense(nmlp_heldout *h, struct scorer *s, int64_t begin, int64_t end, float *rows,
                             nmlp_err *err) {
    const nmlp_calib_windows *w = h->windows;
    int64_t window = w->context * h->hidden, n_probe = nmlp_max(nmlp_min(end, h->n_probe) - begin, 0);
    NMLP_RETURN_IF_FAILED(nmlp_session_embed(s->session, w->ids + (w->n_calib + begin) * w->context,
                                             (end - begin) * w->context, rows, err));
    for (int64_t l = 0; l < h->n_layers; l++) {
        if (n_probe > 0) memcpy(h->inputs[l] + begin * window, rows, (size_t)(n_probe * window) * sizeof *rows);
        NMLP_RETURN_IF_FAILED(run_windows(s, l, rows, end - begin, err));
    }
    for (int64_t i = begin; i < end; i++) {
        final_rows(s, rows + (i - begin) * window, h->reference + i * h->n_scored * h->hidden);
        if (i < h->n_cached) cache_logits(s, h, i);
        score_window(s, i, rows + (i - begin) * window);
    }
    return NMLP_OK;
}

/* What the others made, for every process: trials of ranks are dealt later, and each needs all of it. */
static nmlp_status gather_dense(nmlp_heldout *h, struct scorer *s, nmlp_err *err) {
    int64_t n = h->windows->n_heldout;
    size_t scored = (size_t)h->n_scored, window = (size_t)(h->windows->context * h->hidden) * sizeof(float);
    NMLP_RETURN_IF_FAILED(gather_windows(h, h->reference, scored * (size_t)h->hidden * sizeof(float), n, n, err));
    for (int64_t l = 0; l < h->n_layers && h->n_probe > 0; l++)
        NMLP_RETURN_IF_FAILED(gather_windows(h, h->inputs[l], window, h->n_probe, n, err));
    NMLP_RETURN_IF_FAILED(gather_windows(h, h->logits, scored * (size_t)s->vocab * sizeof(float), h->n_cached, n, err));
    return gather_windows(h, s->losses, scored * sizeof *s->losses, n, n, err);
}

static nmlp_status new_memory(nmlp_heldout *h, int64_t vocab, nmlp_err *err) {
    int64_t n_windows = h->windows->n_heldout;
    int64_t window_bytes = h->n_scored * vocab * (int64_t)sizeof(float);
    h->n_cached = nmlp_min(n_windows, cached_logits_bytes / (window_bytes > 0 ? window_bytes : 1));
    h->reference = nmlp_mem_new((size_t)(n_windows * h->n_scored * h->hidden), sizeof(float), err);
    h->inputs = nmlp_mem_new((size_t)h->n_layers, sizeof *h->inputs, err);
    h->logits = nmlp_mem_new((size_t)(h->n_cached * h->n_scored * vocab), sizeof(float), err);
    if (!h->reference || !h->inputs || !h->logits) return NMLP_E_NOMEM;
    for (int64_t l = 0; l < h->n_layers && h->n_probe > 0; l++) {
        h->inputs[l] = nmlp_mem_new((size_t)(h->n_probe * h->windows->context * h->hidden), sizeof(float), err);
        if (!h->inputs[l]) return NMLP_E_NOMEM;
    }
    return NMLP_OK;
}

nmlp_status nmlp_heldout_create(nmlp_heldout *h, const nmlp_engine *dense, const nmlp_calib_windows *windows,
                                const nmlp_heldout_options *options, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(dense)->config;
    struct scorer s = {0};
    nmlp_status st = NMLP_OK;
    *h = (nmlp_heldout){.group = options->group,
                        .windows = windows,
                        .hidden = c->hidden,
                        .n_layers = c->n_layers,
                        .n_probe = nmlp_min(options->n_probe, windows->n_heldout),
                        .step = options->step,
                        .n_scored = (windows->context - 2 + options->step) / options->step,
                        .times = options->times};
    int64_t begin = nmlp_group_share(h->group, windows->n_heldout, nmlp_group_rank(h->group));
    int64_t end = nmlp_group_share(h->group, windows->n_heldout, nmlp_group_rank(h->group) + 1);
    float *rows = nmlp_mem_new((size_t)((end - begin) * windows->context * c->hidden) + 1, sizeof *rows, err);
    if (!rows) return NMLP_E_NOMEM;
    nmlp_compress_work before = nmlp_compress_times_enter(h->times, NMLP_COMPRESS_WORK_FORWARD);
    NMLP_TRY(new_memory(h, c->vocab, err));
    NMLP_TRY(scorer_open(&s, h, dense, err));
    NMLP_TRY(run_dense(h, &s, begin, end, rows, err));
    NMLP_TRY(gather_dense(h, &s, err));
    h->dense = scorer_loss(&s, windows->n_heldout);
out:
    nmlp_compress_times_enter(options->times, before);
    scorer_close(&s);
    nmlp_mem_free(rows);
    if (st != NMLP_OK) nmlp_heldout_destroy(h);
    return st;
}

void nmlp_heldout_end_probes(nmlp_heldout *h) {
    for (int64_t l = 0; h->inputs && l < h->n_layers; l++) nmlp_mem_free(h->inputs[l]);
    nmlp_mem_free(h->inputs);
    h->inputs = NULL;
    h->n_probe = 0;
}

void nmlp_heldout_destroy(nmlp_heldout *h) {
    nmlp_heldout_end_probes(h);
    nmlp_mem_free(h->reference);
    nmlp_mem_free(h->logits);
    *h = (nmlp_heldout){0};
}

/* One layer with another MLP in it; a session is sized for what is in the engine, so it gets its own. */
static nmlp_status run_changed(const nmlp_heldout *h, const nmlp_engine *engine, const nmlp_mlp_overrides *in,
                               int64_t layer, float *rows, int64_t n_windows, nmlp_err *err) {
    nmlp_session *session = NULL;
    nmlp_compress_work before = nmlp_compress_times_enter(h->times, NMLP_COMPRESS_WORK_PACKING);
    nmlp_status st = in->install(in->ctx, layer, err);
    if (st == NMLP_OK) st = nmlp_session_create(&session, engine, h->windows->context, h->windows->context, false, err);
    nmlp_compress_times_enter(h->times, before);
    if (st == NMLP_OK) run_layer(h, session, layer, rows, n_windows);
    nmlp_session_destroy(session);
    in->remove(in->ctx, layer);
    return st;
}

/* Windows first..first+n-1, whose inputs of the first layer to run are in `rows`, into the scorer. */
static nmlp_status run_and_score(struct scorer *s, int64_t from_layer, int64_t first, int64_t n,
                                 const nmlp_mlp_overrides *in, float *rows, nmlp_err *err) {
    const nmlp_heldout *h = s->heldout;
    for (int64_t l = from_layer; l < h->n_layers; l++) {
        if (in && in->changes(in->ctx, l)) {
            NMLP_RETURN_IF_FAILED(run_changed(h, s->engine, in, l, rows, n, err));
        } else {
            NMLP_RETURN_IF_FAILED(run_windows(s, l, rows, n, err));
        }
    }
    for (int64_t i = 0; i < n; i++) score_window(s, first + i, rows + i * h->windows->context * h->hidden);
    return NMLP_OK;
}

static nmlp_status measure_windows(struct scorer *s, int64_t from_layer, int64_t first, int64_t n,
                                   const nmlp_mlp_overrides *in, nmlp_err *err) {
    const nmlp_heldout *h = s->heldout;
    const nmlp_calib_windows *w = h->windows;
    nmlp_status st = NMLP_OK;
    int64_t begin = first * w->context, n_elems = n * w->context * h->hidden;
    if (n == 0) return NMLP_OK;
    float *rows = nmlp_mem_new((size_t)n_elems, sizeof *rows, err);
    if (!rows) return NMLP_E_NOMEM;
    if (from_layer > 0) {
        memcpy(rows, h->inputs[from_layer] + begin * h->hidden, (size_t)n_elems * sizeof *rows);
    } else {
        NMLP_TRY(nmlp_session_embed(s->session, w->ids + w->n_calib * w->context + begin, n * w->context, rows, err));
    }
    st = run_and_score(s, from_layer, first, n, in, rows, err);
out:
    nmlp_mem_free(rows);
    return st;
}

nmlp_status nmlp_heldout_measure(const nmlp_heldout *h, const nmlp_engine *engine, int64_t from_layer,
                                 int64_t n_windows, const nmlp_mlp_overrides *in, nmlp_loss *loss, nmlp_err *err) {
    struct scorer s = {0};
    nmlp_status st = NMLP_OK;
    n_windows = nmlp_min(n_windows, h->windows->n_heldout);
    nmlp_compress_work before = nmlp_compress_times_enter(h->times, NMLP_COMPRESS_WORK_FORWARD);
    NMLP_TRY(scorer_open(&s, h, engine, err));
    NMLP_TRY(measure_windows(&s, from_layer, 0, n_windows, in, err));
    *loss = scorer_loss(&s, n_windows);
out:
    nmlp_compress_times_enter(h->times, before);
    scorer_close(&s);
    return st;
}

nmlp_status nmlp_heldout_measure_embedding(const nmlp_heldout *h, const nmlp_engine *engine, const float *table,
                                           int64_t n_windows, nmlp_loss *loss, nmlp_err *err) {
    const nmlp_calib_windows *w = h->windows;
    struct scorer s = {0};
    nmlp_status st = NMLP_OK;
    n_windows = nmlp_min(n_windows, w->n_heldout);
    int64_t n_rows = n_windows * w->context;
    const int32_t *ids = w->ids + w->n_calib * w->context;
    float scale = (float)nmlp_engine_model(engine)->config.embedding_scale;
    float *rows = nmlp_mem_new((size_t)(n_rows * h->hidden), sizeof *rows, err);
    if (!rows) return NMLP_E_NOMEM;
    nmlp_compress_work before = nmlp_compress_times_enter(h->times, NMLP_COMPRESS_WORK_FORWARD);
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < h->hidden; j++) rows[i * h->hidden + j] = scale * table[ids[i] * h->hidden + j];
    NMLP_TRY(scorer_open(&s, h, engine, err));
    NMLP_TRY(run_and_score(&s, 0, 0, n_windows, NULL, rows, err));
    *loss = scorer_loss(&s, n_windows);
out:
    nmlp_compress_times_enter(h->times, before);
    scorer_close(&s);
    nmlp_mem_free(rows);
    return st;
}

nmlp_status nmlp_heldout_measure_shared(const nmlp_heldout *h, const nmlp_engine *engine, int64_t n_windows,
                                        const nmlp_mlp_overrides *in, nmlp_loss *loss, nmlp_err *err) {
    struct scorer s = {0};
    nmlp_status st = NMLP_OK;
    n_windows = nmlp_min(n_windows, h->windows->n_heldout);
    int64_t first = nmlp_group_share(h->group, n_windows, nmlp_group_rank(h->group));
    int64_t end = nmlp_group_share(h->group, n_windows, nmlp_group_rank(h->group) + 1);
    nmlp_compress_work before = nmlp_compress_times_enter(h->times, NMLP_COMPRESS_WORK_FORWARD);
    NMLP_TRY(scorer_open(&s, h, engine, err));
    NMLP_TRY(measure_windows(&s, 0, first, end - first, in, err));
    NMLP_TRY(gather_windows(h, s.losses, (size_t)h->n_scored * sizeof *s.losses, n_windows, n_windows, err));
    *loss = scorer_loss(&s, n_windows);
out:
    nmlp_compress_times_enter(h->times, before);
    scorer_close(&s);
    return st;
}

static nmlp_status scorer_use_head(struct scorer *s, const nmlp_linear *head, nmlp_err *err) {
    if (!head) return NMLP_OK;
    size_t bytes = nmlp_linear_workspace_bytes(head, s->block, nmlp_pool_threads(nmlp_engine_pool(s->engine)));
    s->head = head;
    s->head_workspace = nmlp_mem_new(bytes, 1, err);
    return s->head_workspace ? NMLP_OK : NMLP_E_NOMEM;
}

nmlp_status nmlp_heldout_score(const nmlp_heldout *h, const nmlp_engine *engine, const float *rows,
                               const nmlp_linear *head, nmlp_loss *loss, nmlp_err *err) {
    int64_t n = h->windows->n_heldout, first = nmlp_group_share(h->group, n, nmlp_group_rank(h->group));
    int64_t end = nmlp_group_share(h->group, n, nmlp_group_rank(h->group) + 1);
    struct scorer s = {0};
    nmlp_status st = NMLP_OK;
    NMLP_TRY(scorer_open(&s, h, engine, err));
    NMLP_TRY(scorer_use_head(&s, head, err));
    for (int64_t i = first; i < end; i++) score_window(&s, i, rows + (i - first) * h->windows->context * h->hidden);
    NMLP_TRY(gather_windows(h, s.losses, (size_t)h->n_scored * sizeof *s.losses, n, n, err));
    *loss = scorer_loss(&s, n);
out:
    scorer_close(&s);
    return st;
}

nmlp_status nmlp_heldout_score_head(const nmlp_heldout *h, const nmlp_engine *engine, const nmlp_linear *head,
                                    nmlp_loss *loss, nmlp_err *err) {
    struct scorer s = {0};
    nmlp_status st = NMLP_OK;
    int64_t elems = h->n_scored * h->hidden;
    NMLP_TRY(scorer_open(&s, h, engine, err));
    NMLP_TRY(scorer_use_head(&s, head, err));
    for (int64_t i = 0; i < h->windows->n_heldout; i++) {
        memcpy(s.rows, h->reference + i * elems, (size_t)elems * sizeof *s.rows);
        score_final_rows(&s, i);
    }
    *loss = scorer_loss(&s, h->windows->n_heldout);
out:
    scorer_close(&s);
    return st;
}
