#include "compress/quantize/quant_pass.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "compress/calibrate/hidden_states.h"
#include "compress/quantize/quant_experts.h"
#include "compress/quantize/quant_file.h"
#include "compress/quantize/quant_pass_internal.h"
#include "compress/quantize/quant_stand_in.h"
#include "tensor/quant.h"

nmlp_status nmlp_quant_pass_advance(nmlp_quant_pass *p, int64_t tokens, nmlp_err *err) {
    p->done += (double)tokens;
    if (nmlp_progress_update(p->progress, "quantising", p->done, p->total, "tokens")) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_INTERRUPTED, "quantising was stopped");
}

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

/* The matrices that this process owns. */
static nmlp_status make_matrices(nmlp_quant_pass *p, int64_t l, nmlp_layer *made, const nmlp_quant_seen *seen,
                                 const nmlp_quant_maker *maker, nmlp_err *err) {
    const nmlp_layer *source = &nmlp_engine_model(p->engine)->layers[l];
    nmlp_quant_routed routed = {
        .engine = p->engine, .kernels = seen->kernels, .layer = l, .rows = seen->routed, .n_rows = seen->n_routed};
    NMLP_RETURN_IF_FAILED(nmlp_quant_attention_make(made, source, maker, err));
    return source->experts ? nmlp_quant_experts_make(made, source, &routed, maker, err)
                           : nmlp_quant_mlp_make(made->mlp, source->mlp, source->shared_basis, maker, err);
}

/* The engine has packed copies: pages of the checkpoint that rounding read are not needed again. */
static void release_source(const nmlp_quant_pass *p, int64_t l) {
    nmlp_layer source = nmlp_engine_model(p->engine)->layers[l];
    int64_t n = nmlp_quant_layer_views(&nmlp_engine_model(p->engine)->config, l);
    for (int64_t i = 0; i < n; i++) {
        const nmlp_view *view = nmlp_quant_layer_view(&source, i);
        if (view->data) nmlp_file_map_release(view->data, nmlp_view_bytes(view));
    }
}

static nmlp_status make_layer(nmlp_quant_pass *p, int64_t l, const char *path, nmlp_err *err) {
    const nmlp_model *model = nmlp_engine_model(p->engine);
    const nmlp_process_group *group = p->share->group;
    nmlp_quant_seen seen;
    nmlp_layer made;
    nmlp_arena arena;
    nmlp_work_state state;
    nmlp_status st = NMLP_OK;
    int owners[NMLP_QUANT_INPUTS];
    nmlp_arena_init(&arena);
    NMLP_TRY(nmlp_quant_layer_copy(&made, &arena, &model->layers[l], &model->config, err));
    nmlp_quant_share_owners(p->share, &made, &model->config, l, owners);
    NMLP_TRY(nmlp_quant_collect(p, l, owners, &arena, &seen, err));
    nmlp_quant_maker maker = {.formats = p->formats + l * NMLP_QUANT_MATRICES,
                              .moments = &seen.moments,
                              .arena = &arena,
                              .pool = nmlp_engine_pool(p->engine)};
    for (int i = 0; i < NMLP_QUANT_INPUTS; i++) maker.skips[i] = owners[i] != nmlp_group_rank(group);
    NMLP_TRY(make_matrices(p, l, &made, &seen, &maker, err));
    NMLP_TRY(nmlp_quant_share_layer(p->share, &made, &model->config, l, owners, &arena, err));
    if (nmlp_group_leads(group)) NMLP_TRY(write_layer(p, l, &made, path, err));
    release_source(p, l);
    NMLP_TRY(nmlp_group_meet(group, err));
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
    const nmlp_calib_windows *w = &p->share->own;
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
        NMLP_TRY(nmlp_quant_pass_advance(p, w->context, err));
    }
out:
    nmlp_session_destroy(session);
    nmlp_quant_stand_in_remove(&wide);
    nmlp_file_map_release(p->made->maps[l].data, p->made->maps[l].bytes);
    return st;
}

static nmlp_status embed(nmlp_quant_pass *p, nmlp_err *err) {
    const nmlp_calib_windows *w = &p->share->own;
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
    NMLP_RETURN_IF_FAILED(nmlp_quant_head_open(p, tally, err));
    NMLP_RETURN_IF_FAILED(embed(p, err));
    for (int64_t l = 0; l < p->made->n_layers; l++) {
        char path[NMLP_QUANT_PATH_MAX], name[64];
        nmlp_work_state state;
        snprintf(name, sizeof name, "layer-%05lld.quant", (long long)l);
        NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, p->work_dir, name, err));
        NMLP_RETURN_IF_FAILED(open_layer(p, l, path, &state, err));
        NMLP_RETURN_IF_FAILED(nmlp_work_agree(p->share->group, state, p->work_dir, err));
        tally->n[state]++;
        if (state == NMLP_WORK_VALID)
            NMLP_RETURN_IF_FAILED(nmlp_quant_collect_skip(p, l, err));
        else
            NMLP_RETURN_IF_FAILED(make_layer(p, l, path, err));
        NMLP_RETURN_IF_FAILED(run_layer(p, l, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_quant_pass_run(nmlp_quant_pass *p, nmlp_err *err) {
    const nmlp_calib_windows *own = &p->share->own;
    int64_t h = nmlp_engine_model(p->engine)->config.hidden, calib = nmlp_calib_windows_calib_tokens(own);
    nmlp_work_tally tally = {0};
    p->total = (double)p->made->n_layers * (double)(nmlp_calib_windows_tokens(own) + 2 * calib);
    p->dense_rows = nmlp_mem_new((size_t)(calib * h), sizeof *p->dense_rows, err);
    nmlp_status st = p->dense_rows ? run_pass(p, &tally, err) : NMLP_E_NOMEM;
    nmlp_mem_free(p->dense_rows);
    p->dense_rows = NULL;
    if (st == NMLP_OK) nmlp_work_tally_note(&tally, "quantised layers", p->progress);
    return st;
}
