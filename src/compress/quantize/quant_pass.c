#include "compress/quantize/quant_pass.h"

#include <stdio.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "compress/calibrate/gram.h"
#include "compress/calibrate/hidden_states.h"
#include "compress/quantize/quant_experts.h"
#include "compress/quantize/quant_stand_in.h"
#include "compress/work.h"
#include "tensor/quant.h"

enum { PATH_MAX_BYTES = 4096, HEAD_WINDOWS_MIN = 32, EMBED_ROWS_PER_TASK = 64 };

nmlp_status nmlp_quant_model_init(nmlp_quant_model *q, const nmlp_model *m, nmlp_err *err) {
    *q = (nmlp_quant_model){.embedding = m->embedding, .lm_head = m->lm_head, .n_layers = m->config.n_layers};
    nmlp_arena_init(&q->experts);
    q->layers = nmlp_mem_new((size_t)q->n_layers, sizeof *q->layers, err);
    q->maps = nmlp_mem_new((size_t)q->n_layers, sizeof *q->maps, err);
    if (!q->layers || !q->maps) return NMLP_E_NOMEM;
    for (int64_t l = 0; l < q->n_layers; l++)
        NMLP_RETURN_IF_FAILED(nmlp_quant_layer_copy(&q->layers[l], &q->experts, &m->layers[l], &m->config, err));
    return NMLP_OK;
}

void nmlp_quant_model_fini(nmlp_quant_model *q) {
    for (int64_t l = 0; q->maps && l < q->n_layers; l++) nmlp_file_map_close(&q->maps[l]);
    nmlp_file_map_close(&q->head_map);
    if (q->layers) nmlp_arena_fini(&q->experts);
    nmlp_mem_free(q->layers);
    nmlp_mem_free(q->maps);
    *q = (nmlp_quant_model){0};
}

static nmlp_status advance(nmlp_quant_pass *p, int64_t tokens, nmlp_err *err) {
    p->done += (double)tokens;
    if (nmlp_progress_update(p->progress, "quantising", p->done, p->total, "tokens")) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_INTERRUPTED, "quantising was stopped");
}

/* ---- moments ---- */

/* Beyond so many inputs the dense model's are not looked at: what that takes grows with their cube. */
enum { DRIFT_INPUTS_MAX = 4096 };

struct watch {
    const nmlp_kernels *kernels;
    nmlp_pool *pool;
    const nmlp_config *config;
    nmlp_quant_moments moments;
    float *dense[NMLP_QUANT_INPUTS]; /* [context, K] what the model as it was sees in this window; NULL: not known */
    bool of_dense;                   /* it runs now */
    float *routed;                   /* [calibration tokens, H] what experts see; NULL: the layer has none */
    int64_t n_routed;                /* rows of it so far */
    nmlp_status st;                  /* of the first failure: observers cannot return one */
    nmlp_err err;
};

static void see(struct watch *w, nmlp_quant_input input, const float *x, int64_t s) {
    int64_t n = nmlp_quant_input_size(w->config, input);
    if (w->st != NMLP_OK) return;
    if (input == NMLP_QUANT_MLP_INPUT && w->routed) {
        if (w->of_dense) return;
        memcpy(w->routed + w->n_routed * n, x, (size_t)(s * n) * sizeof *x);
        w->n_routed += s;
        return;
    }
    if (w->of_dense) {
        if (w->dense[input]) memcpy(w->dense[input], x, (size_t)(s * n) * sizeof *x);
        return;
    }
    w->st = nmlp_gram_add(w->kernels, w->pool, w->moments.second[input], x, s, n, &w->err);
    if (w->st == NMLP_OK && w->dense[input])
        w->st = nmlp_gram_add_cross(w->kernels, w->pool, w->moments.drift[input], w->dense[input], x, s, n, n, &w->err);
}

static void on_attention_input(void *ctx, int64_t layer, const float *x, int64_t s) {
    (void)layer;
    see(ctx, NMLP_QUANT_ATTENTION_INPUT, x, s);
}

static void on_attention_mixed(void *ctx, int64_t layer, const float *x, int64_t s) {
    (void)layer;
    see(ctx, NMLP_QUANT_ATTENTION_MIXED, x, s);
}

static void on_mlp_input(void *ctx, int64_t layer, const float *x, int64_t s) {
    (void)layer;
    see(ctx, NMLP_QUANT_MLP_INPUT, x, s);
}

static void on_mlp_inside(void *ctx, int64_t layer, const float *gate, const float *up, const float *act, int64_t s) {
    (void)layer;
    (void)gate;
    (void)up;
    see(ctx, NMLP_QUANT_MLP_ACT, act, s);
}

/* Experts have moments of their own, made of the rows they see. */
static bool is_watched(const struct watch *w, int input) {
    return !w->routed || input == NMLP_QUANT_ATTENTION_INPUT || input == NMLP_QUANT_ATTENTION_MIXED;
}

static nmlp_status new_moments(struct watch *w, nmlp_arena *arena, const nmlp_calib_windows *windows, bool experts,
                               nmlp_err *err) {
    int64_t rows = nmlp_calib_windows_calib_tokens(windows);
    if (experts) {
        w->routed = nmlp_arena_new(arena, (size_t)(rows * w->config->hidden), sizeof *w->routed, err);
        if (!w->routed) return NMLP_E_NOMEM;
    }
    for (int i = 0; i < NMLP_QUANT_INPUTS; i++) {
        int64_t n = nmlp_quant_input_size(w->config, (nmlp_quant_input)i);
        if (!is_watched(w, i)) continue;
        w->moments.second[i] = nmlp_arena_new(arena, (size_t)(n * n), sizeof(double), err);
        if (!w->moments.second[i]) return NMLP_E_NOMEM;
        if (n > DRIFT_INPUTS_MAX) continue;
        w->moments.drift[i] = nmlp_arena_new(arena, (size_t)(n * n), sizeof(double), err);
        w->dense[i] = nmlp_arena_new(arena, (size_t)(windows->context * n), sizeof(float), err);
        if (!w->moments.drift[i] || !w->dense[i]) return NMLP_E_NOMEM;
    }
    return NMLP_OK;
}

/* Other text differs from the calibration text by more than its length says: pairs of inputs count as if there were no
 * more than so many tokens for each input, so at most 4 fifths (docs/lab/quantisation.md). */
enum { TOKENS_PER_INPUT_MAX = 4 };

/* Sums to means, and what the text cannot tell about pairs of inputs towards 0. */
static void finish_moments(double *c, double *drift, int64_t n, int64_t tokens) {
    for (int64_t i = 0; i < n * n; i++) c[i] /= (double)tokens;
    for (int64_t i = 0; drift && i < n * n; i++) drift[i] = drift[i] / (double)tokens - c[i];
    nmlp_gram_shrink(c, n, nmlp_min(tokens, TOKENS_PER_INPUT_MAX * n));
}

/* A window of the model as it was, one layer further. */
static nmlp_status run_dense(nmlp_quant_pass *p, nmlp_session *session, int64_t l, int64_t window, nmlp_err *err) {
    int64_t h = nmlp_engine_model(p->engine)->config.hidden, context = p->windows->context;
    float *rows = p->dense_rows + window * context * h;
    nmlp_session_run_layer(session, l, rows, 0, context);
    NMLP_RETURN_IF_FAILED(nmlp_check_rows(rows, context, h, l, "hidden state", err));
    return advance(p, context, err);
}

/* The layer's own weights on the calibration windows; the quantised model's hidden states stay where they are. */
static nmlp_status collect(nmlp_quant_pass *p, int64_t l, struct watch *w, nmlp_err *err) {
    const nmlp_config *c = w->config;
    const nmlp_calib_windows *windows = p->windows;
    int64_t window_elems = windows->context * c->hidden, tokens = nmlp_calib_windows_calib_tokens(windows);
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    nmlp_observer observer = {.ctx = w,
                              .attention_input = on_attention_input,
                              .attention_mixed = on_attention_mixed,
                              .mlp_input = on_mlp_input,
                              .mlp_inside = on_mlp_inside};
    float *rows = nmlp_mem_new((size_t)window_elems, sizeof *rows, err);
    if (!rows) return NMLP_E_NOMEM;
    NMLP_TRY(nmlp_session_create(&session, p->engine, windows->context, windows->context, true, err));
    nmlp_session_set_observer(session, &observer);
    for (int64_t i = 0; i < windows->n_calib; i++) {
        w->of_dense = true;
        NMLP_TRY(run_dense(p, session, l, i, err));
        w->of_dense = false;
        memcpy(rows, p->rows + i * window_elems, (size_t)window_elems * sizeof *rows);
        nmlp_session_run_layer(session, l, rows, 0, windows->context);
        NMLP_TRY(nmlp_check_rows(rows, windows->context, c->hidden, l, "hidden state", err));
        NMLP_TRY(advance(p, windows->context, err));
        if (w->st != NMLP_OK) {
            *err = w->err;
            NMLP_TRY(w->st);
        }
    }
    w->moments.tokens = tokens;
    for (int i = 0; i < NMLP_QUANT_INPUTS; i++)
        if (is_watched(w, i))
            finish_moments(w->moments.second[i], w->moments.drift[i], nmlp_quant_input_size(c, (nmlp_quant_input)i),
                           tokens);
out:
    nmlp_session_destroy(session);
    nmlp_mem_free(rows);
    return st;
}

/* Where a layer is there already, what `collect` would have done to the hidden states. */
static nmlp_status skip_layer(nmlp_quant_pass *p, int64_t l, nmlp_err *err) {
    const nmlp_calib_windows *w = p->windows;
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    NMLP_TRY(nmlp_session_create(&session, p->engine, w->context, w->context, false, err));
    for (int64_t i = 0; i < w->n_calib; i++) NMLP_TRY(run_dense(p, session, l, i, err));
    NMLP_TRY(advance(p, nmlp_calib_windows_calib_tokens(w), err));
out:
    nmlp_session_destroy(session);
    return st;
}

/* ---- layers ---- */

/* [*n] all views of a layer, to be freed. */
static nmlp_view **list_views(const nmlp_quant_pass *p, int64_t l, nmlp_layer *layer, int64_t *n, nmlp_err *err) {
    *n = nmlp_quant_layer_views(&nmlp_engine_model(p->engine)->config, l);
    nmlp_view **views = nmlp_mem_new((size_t)*n, sizeof *views, err);
    for (int64_t i = 0; views && i < *n; i++) views[i] = nmlp_quant_layer_view(layer, i);
    return views;
}

static nmlp_status open_layer(nmlp_quant_pass *p, int64_t l, const char *path, nmlp_work_state *state, nmlp_err *err) {
    int64_t n;
    nmlp_view **views = list_views(p, l, &p->made->layers[l], &n, err);
    if (!views) return NMLP_E_NOMEM;
    nmlp_status st = nmlp_quant_file_open(&p->made->maps[l], path, p->fingerprint, views, n, state, err);
    nmlp_mem_free(views);
    return st;
}

static nmlp_status write_layer(nmlp_quant_pass *p, int64_t l, nmlp_layer *made, const char *path, nmlp_err *err) {
    int64_t n;
    nmlp_view **views = list_views(p, l, made, &n, err);
    if (!views) return NMLP_E_NOMEM;
    nmlp_status st = nmlp_quant_file_write(path, p->fingerprint, views, n, err);
    nmlp_mem_free(views);
    return st;
}

static nmlp_status make_layer(nmlp_quant_pass *p, int64_t l, const char *path, nmlp_err *err) {
    const nmlp_model *model = nmlp_engine_model(p->engine);
    const nmlp_layer *source = &model->layers[l];
    nmlp_layer made;
    nmlp_arena arena;
    nmlp_work_state state;
    nmlp_status st = NMLP_OK;
    struct watch w = {.pool = nmlp_engine_pool(p->engine), .config = &model->config};
    nmlp_arena_init(&arena);
    NMLP_TRY(nmlp_kernels_select(&w.kernels, nmlp_cpu_get(), nmlp_engine_isa(p->engine), err));
    NMLP_TRY(new_moments(&w, &arena, p->windows, source->experts != NULL, err));
    NMLP_TRY(collect(p, l, &w, err));
    nmlp_quant_maker maker = {
        .formats = p->formats + l * NMLP_QUANT_MATRICES, .moments = &w.moments, .arena = &arena, .pool = w.pool};
    NMLP_TRY(nmlp_quant_layer_copy(&made, &arena, source, &model->config, err));
    NMLP_TRY(nmlp_quant_attention_make(&made, source, &maker, err));
    nmlp_quant_routed routed = {
        .engine = p->engine, .kernels = w.kernels, .layer = l, .rows = w.routed, .n_rows = w.n_routed};
    NMLP_TRY(source->experts ? nmlp_quant_experts_make(&made, source, &routed, &maker, err)
                             : nmlp_quant_mlp_make(made.mlp, source->mlp, source->shared_basis, &maker, err));
    NMLP_TRY(write_layer(p, l, &made, path, err));
    NMLP_TRY(open_layer(p, l, path, &state, err));
    if (state != NMLP_WORK_VALID)
        NMLP_TRY(nmlp_fail(err, NMLP_E_IO, "%s: was written a moment ago and cannot be read back", path));
out:
    nmlp_arena_fini(&arena);
    return st;
}

/* The quantised layer in f32: what is measured and handed on is the rounding of weights alone. */
static nmlp_status install(nmlp_quant_pass *p, int64_t l, nmlp_quant_stand_in *wide, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_quant_stand_in_init(wide, p->engine, l, &p->made->layers[l], err));
    for (int64_t i = 0; i < wide->n_views; i++) {
        const nmlp_view *view = nmlp_quant_layer_view(&wide->layer, i);
        if (!view->data || !nmlp_dtype_is_quantised(view->dtype) || nmlp_quant_view_first(&wide->layer, i) != i)
            continue;
        float *values = nmlp_quant_widen(view, nmlp_engine_pool(p->engine), err);
        if (!values) return NMLP_E_NOMEM;
        nmlp_quant_stand_in_set(wide, i, values);
    }
    return nmlp_quant_stand_in_install(wide, err);
}

static nmlp_status run_layer(nmlp_quant_pass *p, int64_t l, nmlp_err *err) {
    const nmlp_calib_windows *w = p->windows;
    int64_t hidden = nmlp_engine_model(p->engine)->config.hidden;
    nmlp_session *session = NULL;
    nmlp_quant_stand_in wide = {0};
    nmlp_status st = NMLP_OK;
    NMLP_TRY(install(p, l, &wide, err));
    NMLP_TRY(nmlp_session_create(&session, p->engine, w->context, w->context, false, err));
    for (int64_t i = 0; i < w->n_calib + w->n_heldout; i++) {
        float *rows = p->rows + i * w->context * hidden;
        nmlp_session_run_layer(session, l, rows, 0, w->context);
        NMLP_TRY(nmlp_check_rows(rows, w->context, hidden, l, "hidden state", err));
        NMLP_TRY(advance(p, w->context, err));
    }
out:
    nmlp_session_destroy(session);
    nmlp_quant_stand_in_remove(&wide);
    nmlp_file_map_release(p->made->maps[l].data, p->made->maps[l].bytes);
    return st;
}

/* ---- head and embedding ---- */

struct head_rows {
    struct watch *watch;
    double *moments;
};

static void on_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s) {
    struct head_rows *h = ctx;
    (void)session;
    (void)first;
    struct watch *w = h->watch;
    if (w->st == NMLP_OK) w->st = nmlp_gram_add(w->kernels, w->pool, h->moments, rows, s, w->config->hidden, &w->err);
}

/* Second moments of what the head sees, from the model as it is on some of the calibration windows. */
static nmlp_status head_moments(nmlp_quant_pass *p, double *moments, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(p->engine)->config;
    const nmlp_calib_windows *w = p->windows;
    struct watch watch = {.pool = nmlp_engine_pool(p->engine), .config = c};
    struct head_rows rows = {.watch = &watch, .moments = moments};
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    int64_t n = nmlp_min(w->n_calib, nmlp_max(HEAD_WINDOWS_MIN, 4 * c->hidden / w->context));
    NMLP_TRY(nmlp_kernels_select(&watch.kernels, nmlp_cpu_get(), nmlp_engine_isa(p->engine), err));
    NMLP_TRY(nmlp_session_create(&session, p->engine, w->context, w->context, false, err));
    for (int64_t i = 0; i < n; i++) {
        int64_t window = i * w->n_calib / n;
        nmlp_session_truncate(session, 0);
        NMLP_TRY(nmlp_session_append(session, w->ids + window * w->context, w->context, on_rows, &rows, err));
        NMLP_TRY(advance(p, 0, err));
        if (watch.st != NMLP_OK) {
            *err = watch.err;
            NMLP_TRY(watch.st);
        }
    }
    finish_moments(moments, NULL, c->hidden, n * w->context);
out:
    nmlp_session_destroy(session);
    return st;
}

struct embedding {
    const nmlp_view *from, *to;
    float *rows; /* [threads, H] */
};

/* An embedding of its own sees no inputs: every row by itself. */
static void round_embedding(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct embedding *e = ctx;
    float *row = e->rows + thread * e->from->shape[1];
    for (int64_t i = begin; i < end; i++) {
        nmlp_quant_row_to_f32(row, e->from, i);
        nmlp_quant_row_from_f32(e->to, i, row);
    }
}

static nmlp_status make_head(nmlp_quant_pass *p, const char *path, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(p->engine);
    int64_t h = m->config.hidden;
    nmlp_pool *pool = nmlp_engine_pool(p->engine);
    nmlp_view head = m->lm_head, table = m->embedding;
    nmlp_view *const views[] = {&table, &head};
    nmlp_gptq gptq = {0};
    nmlp_arena arena;
    float *w = NULL;
    nmlp_status st = NMLP_OK;
    nmlp_arena_init(&arena);
    double *moments = nmlp_arena_new(&arena, (size_t)(h * h), sizeof *moments, err);
    if (!moments) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(head_moments(p, moments, err));
    NMLP_TRY(nmlp_gptq_init(&gptq, pool, moments, h, err));
    NMLP_TRY(nmlp_quant_view_new(&head, &arena, &p->head, m->config.vocab, h, err));
    w = nmlp_quant_widen(&m->lm_head, pool, err);
    if (!w) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(nmlp_gptq_round(&gptq, w, &head, NULL, err));
    if (m->embedding.data == m->lm_head.data) {
        table = head;
    } else {
        NMLP_TRY(nmlp_quant_view_new(&table, &arena, &p->head, m->config.vocab, h, err));
        struct embedding e = {.from = &m->embedding, .to = &table};
        e.rows = nmlp_arena_new(&arena, (size_t)(nmlp_pool_threads(pool) * h), sizeof *e.rows, err);
        if (!e.rows) NMLP_TRY(NMLP_E_NOMEM);
        nmlp_pool_for(pool, m->config.vocab, EMBED_ROWS_PER_TASK, round_embedding, &e);
    }
    NMLP_TRY(nmlp_quant_file_write(path, p->fingerprint, views, 2, err));
out:
    nmlp_mem_free(w);
    nmlp_gptq_fini(&gptq);
    nmlp_arena_fini(&arena);
    return st;
}

static nmlp_status open_head(nmlp_quant_pass *p, nmlp_work_tally *tally, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_view *const views[] = {&p->made->embedding, &p->made->lm_head};
    nmlp_work_state state;
    if (!nmlp_dtype_is_quantised(p->head.dtype)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, p->work_dir, "head.quant", err));
    NMLP_RETURN_IF_FAILED(nmlp_quant_file_open(&p->made->head_map, path, p->fingerprint, views, 2, &state, err));
    tally->n[state]++;
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(make_head(p, path, err));
    NMLP_RETURN_IF_FAILED(nmlp_quant_file_open(&p->made->head_map, path, p->fingerprint, views, 2, &state, err));
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_IO, "%s: was written a moment ago and cannot be read back", path);
}

static nmlp_status embed(nmlp_quant_pass *p, nmlp_err *err) {
    const nmlp_calib_windows *w = p->windows;
    int64_t h = nmlp_engine_model(p->engine)->config.hidden, n = nmlp_calib_windows_tokens(w);
    nmlp_session *session = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_session_create(&session, p->engine, w->context, 1, false, err));
    nmlp_status st = nmlp_session_embed(session, w->ids, n, p->rows, err); /* checks the ids too */
    nmlp_session_destroy(session);
    if (st != NMLP_OK) return st;
    memcpy(p->dense_rows, p->rows, (size_t)(nmlp_calib_windows_calib_tokens(w) * h) * sizeof *p->rows);
    if (!nmlp_dtype_is_quantised(p->made->embedding.dtype)) return NMLP_OK;
    float scale = (float)nmlp_engine_model(p->engine)->config.embedding_scale;
    for (int64_t i = 0; i < n; i++) nmlp_quant_row_to_f32(p->rows + i * h, &p->made->embedding, w->ids[i]);
    if (scale != 1.0f) nmlp_multiply(p->rows, p->rows, scale, n * h, nmlp_engine_pool(p->engine));
    nmlp_file_map_release(p->made->head_map.data, p->made->head_map.bytes);
    return NMLP_OK;
}

static nmlp_status run_pass(nmlp_quant_pass *p, nmlp_work_tally *tally, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(open_head(p, tally, err));
    NMLP_RETURN_IF_FAILED(embed(p, err));
    for (int64_t l = 0; l < p->made->n_layers; l++) {
        char path[PATH_MAX_BYTES], name[64];
        nmlp_work_state state;
        snprintf(name, sizeof name, "layer-%05lld.quant", (long long)l);
        NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, p->work_dir, name, err));
        NMLP_RETURN_IF_FAILED(open_layer(p, l, path, &state, err));
        tally->n[state]++;
        if (state == NMLP_WORK_VALID)
            NMLP_RETURN_IF_FAILED(skip_layer(p, l, err));
        else
            NMLP_RETURN_IF_FAILED(make_layer(p, l, path, err));
        NMLP_RETURN_IF_FAILED(run_layer(p, l, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_quant_pass_run(nmlp_quant_pass *p, nmlp_err *err) {
    int64_t h = nmlp_engine_model(p->engine)->config.hidden, calib = nmlp_calib_windows_calib_tokens(p->windows);
    nmlp_work_tally tally = {0};
    p->total = (double)p->made->n_layers * (double)(nmlp_calib_windows_tokens(p->windows) + 2 * calib);
    p->dense_rows = nmlp_mem_new((size_t)(calib * h), sizeof *p->dense_rows, err);
    nmlp_status st = p->dense_rows ? run_pass(p, &tally, err) : NMLP_E_NOMEM;
    nmlp_mem_free(p->dense_rows);
    p->dense_rows = NULL;
    if (st == NMLP_OK) nmlp_work_tally_note(&tally, "quantised layers", p->progress);
    return st;
}
