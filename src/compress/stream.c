#include "compress/stream.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { NEURONS_PER_TASK = 64 };

nmlp_status nmlp_stream_create(nmlp_stream *stream, const nmlp_engine *engine, const nmlp_windows *windows,
                               nmlp_err *err) {
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    int64_t h = nmlp_engine_model(engine)->config.hidden;
    *stream = (nmlp_stream){.windows = windows, .hidden = h};
    stream->rows = nmlp_mem_new((size_t)(nmlp_windows_tokens(windows) * h), sizeof *stream->rows, err);
    if (!stream->rows) return NMLP_E_NOMEM;
    NMLP_TRY(nmlp_session_create(&session, engine, windows->context, 1, false, err));
    NMLP_TRY(nmlp_session_embed(session, windows->ids, nmlp_windows_tokens(windows), stream->rows, err));
out:
    nmlp_session_destroy(session);
    if (st != NMLP_OK) nmlp_stream_destroy(stream);
    return st;
}

void nmlp_stream_destroy(nmlp_stream *stream) {
    nmlp_mem_free(stream->rows);
    *stream = (nmlp_stream){0};
}

nmlp_status nmlp_check_rows(const float *rows, int64_t s, int64_t h, int64_t layer, const char *tensor, nmlp_err *err) {
    for (int64_t i = 0; i < s * h; i++) {
        if (isfinite(rows[i])) continue;
        nmlp_fail(err, NMLP_E_NUMERIC, "layer %lld: %s of calibration token %lld has %s in channel %lld", (long long)layer,
                  tensor, (long long)(i / h), isnan(rows[i]) ? "NaN" : "Inf", (long long)(i % h));
        nmlp_fail_hint(err, "the checkpoint overflows on this text; check its weights with the info command");
        return NMLP_E_NUMERIC;
    }
    return NMLP_OK;
}

/* The observer's view of one window. */
struct watch {
    const nmlp_taps *taps;
    nmlp_pool *pool;
    int64_t first; /* token */
    int64_t n_counted; /* tokens of this window that enter sums: all or none */
    int64_t hidden;
    int64_t intermediate;
    const float *gate, *up, *act;
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

/* Neurons are split over threads; each sums its tokens in order. */
static void sum_neurons(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct watch *w = ctx;
    (void)thread;
    for (int64_t t = 0; t < w->n_counted; t++) {
        int64_t row = t * w->intermediate;
        for (int64_t j = begin; j < end; j++) {
            float g = w->gate[row + j];
            float sigmoid = 1.0f / (1.0f + expf(-g));
            float slope = w->up[row + j] * sigmoid * (1.0f + g * (1.0f - sigmoid));
            w->taps->silu2[j] += (double)(g * sigmoid) * (double)(g * sigmoid);
            w->taps->slope2[j] += (double)slope * (double)slope;
            w->taps->act2[j] += (double)w->act[row + j] * (double)w->act[row + j];
        }
    }
}

static void on_inside(void *ctx, int64_t layer, const float *gate, const float *up, const float *act, int64_t s) {
    struct watch *w = ctx;
    (void)layer;
    (void)s;
    if (w->n_counted == 0) return;
    w->gate = gate;
    w->up = up;
    w->act = act;
    nmlp_pool_for(w->pool, w->intermediate, NEURONS_PER_TASK, sum_neurons, w);
}

static nmlp_status run_window(nmlp_stream *stream, nmlp_session *session, int64_t layer, int64_t window,
                              struct watch *watch, nmlp_err *err) {
    const nmlp_windows *w = stream->windows;
    watch->first = window * w->context;
    watch->n_counted = window < w->n_calib ? w->context : 0;
    float *rows = stream->rows + watch->first * stream->hidden;
    nmlp_session_run_layer(session, layer, rows, 0, w->context);
    if (watch->taps->y) {
        NMLP_RETURN_IF_FAILED(nmlp_check_rows(watch->taps->y + watch->first * stream->hidden, w->context,
                                              stream->hidden, layer, "MLP output", err));
    }
    return nmlp_check_rows(rows, w->context, stream->hidden, layer, "hidden state", err);
}

nmlp_status nmlp_stream_run_layer(nmlp_stream *stream, const nmlp_engine *engine, int64_t layer, const nmlp_taps *taps,
                                  nmlp_stream_progress *progress, nmlp_err *err) {
    const nmlp_windows *w = stream->windows;
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    struct watch watch = {.taps = taps,
                          .pool = nmlp_engine_pool(engine),
                          .hidden = stream->hidden,
                          .intermediate = nmlp_engine_model(engine)->config.intermediate};
    nmlp_observer observer = {.ctx = &watch,
                              .mlp_input = taps->x ? on_input : NULL,
                              .mlp_inside = taps->silu2 ? on_inside : NULL,
                              .mlp_output = taps->y ? on_output : NULL};
    NMLP_TRY(nmlp_session_create(&session, engine, w->context, w->context, taps->silu2 != NULL, err));
    nmlp_session_set_observer(session, &observer);
    for (int64_t i = 0; i < w->n_calib + w->n_heldout; i++) {
        NMLP_TRY(run_window(stream, session, layer, i, &watch, err));
        progress->done += (double)w->context;
        if (!nmlp_progress_update(progress->progress, progress->stage, progress->done, progress->total, "tokens")) {
            st = nmlp_fail(err, NMLP_E_INTERRUPTED, "%s was stopped", progress->stage);
            goto out;
        }
    }
out:
    nmlp_session_destroy(session);
    return st;
}
