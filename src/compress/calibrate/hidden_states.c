#include "compress/calibrate/hidden_states.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

nmlp_status nmlp_hidden_states_create(nmlp_hidden_states *stream, const nmlp_engine *engine,
                                      const nmlp_calib_windows *windows, nmlp_compress_times *times, nmlp_err *err) {
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    int64_t h = nmlp_engine_model(engine)->config.hidden;
    *stream = (nmlp_hidden_states){.windows = windows, .hidden = h, .times = times};
    stream->rows = nmlp_mem_new((size_t)(nmlp_calib_windows_tokens(windows) * h), sizeof *stream->rows, err);
    if (!stream->rows) return NMLP_E_NOMEM;
    NMLP_TRY(nmlp_session_create(&session, engine, windows->context, 1, false, err));
    NMLP_TRY(nmlp_session_embed(session, windows->ids, nmlp_calib_windows_tokens(windows), stream->rows, err));
out:
    nmlp_session_destroy(session);
    if (st != NMLP_OK) nmlp_hidden_states_destroy(stream);
    return st;
}

void nmlp_hidden_states_destroy(nmlp_hidden_states *stream) {
    nmlp_mem_free(stream->rows);
    *stream = (nmlp_hidden_states){0};
}

/* Without a way out in the middle, so that it becomes vector code. */
static bool all_finite(const float *x, int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

nmlp_status nmlp_check_rows(const float *rows, int64_t s, int64_t h, int64_t layer, const char *tensor, nmlp_err *err) {
    if (all_finite(rows, s * h)) return NMLP_OK;
    for (int64_t i = 0; i < s * h; i++) {
        if (isfinite(rows[i])) continue;
        nmlp_fail(err, NMLP_E_NUMERIC, "layer %lld: %s of calibration token %lld has %s in channel %lld",
                  (long long)layer, tensor, (long long)(i / h), isnan(rows[i]) ? "NaN" : "Inf", (long long)(i % h));
        nmlp_fail_hint(err, "the checkpoint overflows on this text; check its weights with the info command");
        return NMLP_E_NUMERIC;
    }
    return NMLP_OK;
}

/* The observer's view of one window. */
struct watch {
    const nmlp_layer_taps *taps;
    nmlp_pool *pool;
    int64_t first;   /* token */
    double *squares; /* [3,I] of this window; NULL: it does not count */
    int64_t hidden;
    int64_t intermediate;
    int64_t q_dim;
    nmlp_activation activation;
    nmlp_compress_times *times;
};

static void on_input(void *ctx, int64_t layer, const float *x, int64_t s) {
    struct watch *w = ctx;
    (void)layer;
    memcpy(w->taps->x + w->first * w->hidden, x, (size_t)(s * w->hidden) * sizeof *x);
}

static void on_output(void *ctx, int64_t layer, const float *y, int64_t s) {
    struct watch *w = ctx;
    (void)layer;
    memcpy(w->taps->y + w->first * w->hidden, y, (size_t)(s * w->hidden) * sizeof *y);
}

static void on_attention_input(void *ctx, int64_t layer, const float *x, int64_t s) {
    struct watch *w = ctx;
    (void)layer;
    memcpy(w->taps->attention_x + w->first * w->hidden, x, (size_t)(s * w->hidden) * sizeof *x);
}

static void on_attention_mixed(void *ctx, int64_t layer, const float *mixed, int64_t s) {
    struct watch *w = ctx;
    (void)layer;
    memcpy(w->taps->attention_mixed + w->first * w->q_dim, mixed, (size_t)(s * w->q_dim) * sizeof *mixed);
}

static void on_inside(void *ctx, int64_t layer, const float *gate, const float *up, const float *act, int64_t s) {
    struct watch *w = ctx;
    (void)layer;
    (void)act;
    if (!w->squares) return;
    nmlp_compress_work before = nmlp_compress_times_enter(w->times, NMLP_COMPRESS_WORK_MOMENTS);
    nmlp_glu_squares squares = {.activation = w->activation,
                                .gate2 = w->squares,
                                .slope2 = w->squares + w->intermediate,
                                .act2 = w->squares + 2 * w->intermediate};
    nmlp_glu_squares_add(&squares, gate, up, s, w->intermediate, w->pool);
    nmlp_compress_times_enter(w->times, before);
}

static struct watch watch_of(const nmlp_hidden_states *stream, const nmlp_engine *engine, const nmlp_layer_taps *taps) {
    const nmlp_config *c = &nmlp_engine_model(engine)->config;
    return (struct watch){.taps = taps,
                          .pool = nmlp_engine_pool(engine),
                          .hidden = stream->hidden,
                          .intermediate = c->intermediate,
                          .q_dim = c->n_heads * c->head_dim,
                          .activation = c->activation,
                          .times = stream->times};
}

static nmlp_status run_window(nmlp_hidden_states *stream, nmlp_session *session, int64_t layer, int64_t window,
                              struct watch *watch, nmlp_err *err) {
    const nmlp_calib_windows *w = stream->windows;
    watch->first = window * w->context;
    watch->squares =
        watch->taps->squares && window < w->n_calib ? watch->taps->squares + window * 3 * watch->intermediate : NULL;
    float *rows = stream->rows + watch->first * stream->hidden;
    nmlp_session_run_layer(session, layer, rows, 0, w->context);
    if (watch->taps->y) {
        NMLP_RETURN_IF_FAILED(nmlp_check_rows(watch->taps->y + watch->first * stream->hidden, w->context,
                                              stream->hidden, layer, "MLP output", err));
    }
    return nmlp_check_rows(rows, w->context, stream->hidden, layer, "hidden state", err);
}

static nmlp_status advance(nmlp_hidden_states_progress *p, int64_t tokens, nmlp_err *err) {
    p->done += (double)tokens;
    if (nmlp_progress_update(p->progress, p->stage, p->done, p->total, "tokens")) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_INTERRUPTED, "%s was stopped", p->stage);
}

nmlp_status nmlp_hidden_states_run_layer(nmlp_hidden_states *stream, const nmlp_engine *engine, int64_t layer,
                                         const nmlp_layer_taps *taps, nmlp_hidden_states_progress *progress,
                                         nmlp_err *err) {
    const nmlp_calib_windows *w = stream->windows;
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    struct watch watch = watch_of(stream, engine, taps);
    nmlp_observer observer = {.ctx = &watch,
                              .attention_input = taps->attention_x ? on_attention_input : NULL,
                              .attention_mixed = taps->attention_mixed ? on_attention_mixed : NULL,
                              .mlp_input = taps->x ? on_input : NULL,
                              .mlp_inside = taps->squares ? on_inside : NULL,
                              .mlp_output = taps->y ? on_output : NULL};
    nmlp_compress_work before = nmlp_compress_times_enter(stream->times, NMLP_COMPRESS_WORK_FORWARD);
    NMLP_TRY(nmlp_engine_hold_layer(engine, layer, err));
    NMLP_TRY(nmlp_session_create(&session, engine, w->context, w->context, taps->squares != NULL, err));
    nmlp_session_set_observer(session, &observer);
    for (int64_t i = 0; i < w->n_calib + w->n_heldout; i++) {
        NMLP_TRY(run_window(stream, session, layer, i, &watch, err));
        NMLP_TRY(advance(progress, w->context, err));
    }
out:
    nmlp_compress_times_enter(stream->times, before);
    nmlp_session_destroy(session);
    return st;
}

nmlp_status nmlp_hidden_states_run_attention(nmlp_hidden_states *stream, const nmlp_engine *engine, int64_t layer,
                                             const nmlp_layer_taps *taps, nmlp_hidden_states_progress *progress,
                                             nmlp_err *err) {
    const nmlp_calib_windows *w = stream->windows;
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    struct watch watch = watch_of(stream, engine, taps);
    nmlp_observer observer = {.ctx = &watch,
                              .attention_input = taps->attention_x ? on_attention_input : NULL,
                              .attention_mixed = taps->attention_mixed ? on_attention_mixed : NULL};
    nmlp_compress_work before = nmlp_compress_times_enter(stream->times, NMLP_COMPRESS_WORK_FORWARD);
    NMLP_TRY(nmlp_engine_hold_layer(engine, layer, err));
    NMLP_TRY(nmlp_session_create(&session, engine, w->context, w->context, false, err));
    nmlp_session_set_observer(session, &observer);
    for (int64_t i = 0; i < w->n_calib + w->n_heldout; i++) {
        int64_t first = i * w->context * stream->hidden;
        watch.first = i * w->context;
        nmlp_session_run_attention(session, layer, stream->rows + first, 0, w->context, taps->x + first);
        NMLP_TRY(nmlp_check_rows(taps->x + first, w->context, stream->hidden, layer, "MLP input", err));
        NMLP_TRY(advance(progress, w->context, err));
    }
out:
    nmlp_compress_times_enter(stream->times, before);
    nmlp_session_destroy(session);
    return st;
}

nmlp_status nmlp_hidden_states_add_mlp(nmlp_hidden_states *stream, const nmlp_engine *engine, int64_t layer, float *y,
                                       nmlp_err *err) {
    nmlp_session *session;
    NMLP_RETURN_IF_FAILED(nmlp_session_create(&session, engine, 1, 1, false, err));
    nmlp_session_add_mlp(session, layer, stream->rows, y, nmlp_calib_windows_tokens(stream->windows));
    nmlp_session_destroy(session);
    return NMLP_OK;
}
