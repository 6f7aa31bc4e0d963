/* Second moments of what the matrices of a layer see. */
#include <string.h>

#include "base/mem.h"
#include "compress/calibrate/hidden_states.h"
#include "compress/quantize/quant_pass_internal.h"
#include "compress/quantize/quant_sum.h"

/* Beyond so many inputs the dense model's are not looked at: what that takes grows with their cube. */
enum { DRIFT_INPUTS_MAX = 4096 };

struct watch {
    const nmlp_config *config;
    nmlp_quant_summer summer;
    nmlp_quant_sum sums[NMLP_QUANT_INPUTS];
    nmlp_observer observer;
    bool of_dense;         /* the model as it was runs now */
    nmlp_quant_seen *seen; /* rows that experts see go there */
};

static void see(struct watch *w, nmlp_quant_input input, const float *x, int64_t s) {
    nmlp_quant_sum *sum = &w->sums[input];
    if (input == NMLP_QUANT_MLP_INPUT && w->seen->routed) {
        if (w->of_dense) return;
        int64_t h = w->config->hidden;
        memcpy(w->seen->routed + w->seen->n_routed * h, x, (size_t)(s * h) * sizeof *x);
        w->seen->n_routed += s;
        return;
    }
    float *to = w->of_dense ? sum->d : sum->x;
    if (to) memcpy(to, x, (size_t)(s * sum->n) * sizeof *x);
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
    return !w->seen->routed || input == NMLP_QUANT_ATTENTION_INPUT || input == NMLP_QUANT_ATTENTION_MIXED;
}

static nmlp_status open_watch(struct watch *w, const nmlp_quant_pass *p, bool experts, nmlp_arena *arena,
                              nmlp_arena *windows, nmlp_err *err) {
    int64_t rows = nmlp_calib_windows_calib_tokens(p->share->all);
    if (experts) {
        w->seen->routed = nmlp_arena_new(arena, (size_t)(rows * w->config->hidden), sizeof *w->seen->routed, err);
        if (!w->seen->routed) return NMLP_E_NOMEM;
    }
    NMLP_RETURN_IF_FAILED(nmlp_quant_summer_init(&w->summer, p->share, nmlp_engine_isa(p->engine),
                                                 nmlp_engine_pool(p->engine), windows, err));
    for (int i = 0; i < NMLP_QUANT_INPUTS; i++) {
        int64_t n = nmlp_quant_input_size(w->config, (nmlp_quant_input)i);
        if (is_watched(w, i))
            NMLP_RETURN_IF_FAILED(nmlp_quant_sum_init(&w->sums[i], &w->summer, n, n <= DRIFT_INPUTS_MAX, arena, err));
    }
    return NMLP_OK;
}

/* One of this process's windows through the model as it was, one layer further. */
static nmlp_status run_dense(nmlp_quant_pass *p, nmlp_session *session, int64_t l, int64_t window, nmlp_err *err) {
    int64_t h = nmlp_engine_model(p->engine)->config.hidden, context = p->share->all->context;
    float *rows = p->dense_rows + window * context * h;
    nmlp_session_run_layer(session, l, rows, 0, context);
    NMLP_RETURN_IF_FAILED(nmlp_check_rows(rows, context, h, l, "hidden state", err));
    return nmlp_quant_pass_advance(p, context, err);
}

/* What a layer makes of the quantised stream is run again once the layer is quantised. */
static void watch_stream(struct watch *w, nmlp_session *session, bool of_dense) {
    w->of_dense = of_dense;
    w->observer.inputs_only = !of_dense;
    nmlp_session_set_observer(session, &w->observer);
}

/* One of this process's windows in both streams; room [context,H]. */
static nmlp_status run_window(nmlp_quant_pass *p, nmlp_session *session, int64_t l, int64_t window, struct watch *w,
                              float *room, nmlp_err *err) {
    int64_t h = w->config->hidden, context = p->share->all->context, elems = context * h;
    watch_stream(w, session, true);
    NMLP_RETURN_IF_FAILED(run_dense(p, session, l, window, err));
    watch_stream(w, session, false);
    memcpy(room, p->rows + window * elems, (size_t)elems * sizeof *room);
    nmlp_session_run_layer(session, l, room, 0, context);
    NMLP_RETURN_IF_FAILED(nmlp_check_rows(room, context, h, l, "hidden state", err));
    return nmlp_quant_pass_advance(p, context, err);
}

static nmlp_status run_windows(nmlp_quant_pass *p, int64_t l, struct watch *w, nmlp_err *err) {
    const nmlp_quant_share *share = p->share;
    int64_t context = share->all->context;
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    w->observer = (nmlp_observer){.ctx = w,
                                  .attention_input = on_attention_input,
                                  .attention_mixed = on_attention_mixed,
                                  .mlp_input = on_mlp_input,
                                  .mlp_inside = on_mlp_inside};
    float *room = nmlp_mem_new((size_t)(context * w->config->hidden), sizeof *room, err);
    if (!room) return NMLP_E_NOMEM;
    NMLP_TRY(nmlp_session_create(&session, p->engine, context, context, true, err));
    for (int64_t t = 0; t < nmlp_quant_share_turns(share, share->all->n_calib); t++) {
        int64_t n = nmlp_quant_share_in_turn(share, share->all->n_calib, t);
        if (t < share->own.n_calib) NMLP_TRY(run_window(p, session, l, t, w, room, err));
        for (int i = 0; i < NMLP_QUANT_INPUTS; i++)
            if (is_watched(w, i)) NMLP_TRY(nmlp_quant_sum_add(&w->sums[i], &w->summer, n, err));
    }
out:
    nmlp_session_destroy(session);
    nmlp_mem_free(room);
    return st;
}

nmlp_status nmlp_quant_collect(nmlp_quant_pass *p, int64_t l, const int owners[NMLP_QUANT_INPUTS], nmlp_arena *arena,
                               nmlp_quant_seen *seen, nmlp_err *err) {
    const nmlp_model *model = nmlp_engine_model(p->engine);
    int64_t tokens = nmlp_calib_windows_calib_tokens(p->share->all);
    struct watch w = {.config = &model->config, .seen = seen};
    nmlp_status st = NMLP_OK;
    nmlp_arena windows;
    *seen = (nmlp_quant_seen){.moments.tokens = tokens};
    nmlp_arena_init(&windows);
    NMLP_TRY(open_watch(&w, p, model->layers[l].experts != NULL, arena, &windows, err));
    NMLP_TRY(run_windows(p, l, &w, err));
    for (int i = 0; i < NMLP_QUANT_INPUTS; i++) {
        if (!is_watched(&w, i)) continue;
        NMLP_TRY(nmlp_quant_sum_finish(&w.sums[i], &w.summer, tokens, owners[i], err));
        seen->moments.second[i] = w.sums[i].second;
        seen->moments.drift[i] = w.sums[i].drift;
    }
    seen->kernels = w.summer.kernels;
out:
    nmlp_arena_fini(&windows);
    return st;
}

nmlp_status nmlp_quant_collect_skip(nmlp_quant_pass *p, int64_t l, nmlp_err *err) {
    const nmlp_calib_windows *own = &p->share->own;
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    NMLP_TRY(nmlp_session_create(&session, p->engine, own->context, own->context, false, err));
    for (int64_t i = 0; i < own->n_calib; i++) NMLP_TRY(run_dense(p, session, l, i, err));
    NMLP_TRY(nmlp_quant_pass_advance(p, nmlp_calib_windows_calib_tokens(own), err));
out:
    nmlp_session_destroy(session);
    return st;
}
