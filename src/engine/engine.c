#include "engine/engine.h"

#include "base/file.h"
#include "base/mem.h"
#include "cuda/cuda.h"
#include "engine/engine_internal.h"

/* What is packed is checked on the way, strip by strip; this finds the element that was met there. */
static nmlp_status check(const nmlp_engine *e, const nmlp_view *view, nmlp_err *err) {
    return e->check_finite ? nmlp_model_check_tensor(e->model, view, e->pool, err) : NMLP_OK;
}

static nmlp_status copy_vector(nmlp_engine *e, float **out, const nmlp_view *view, nmlp_err *err) {
    *out = NULL;
    if (!view->data) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(check(e, view, err));
    size_t n = (size_t)nmlp_view_elems(view);
    *out = nmlp_arena_new(&e->arena, n, sizeof **out, err);
    if (!*out) return NMLP_E_NOMEM;
    nmlp_to_f32(*out, view->data, view->dtype, n);
    return NMLP_OK;
}

static void release_source(const nmlp_view *view) {
    if (view->data) nmlp_file_map_release(view->data, nmlp_view_bytes(view));
}

static nmlp_status make_linear(nmlp_engine *e, nmlp_linear **out, const nmlp_view *weight, const nmlp_view *bias,
                               nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check(e, bias, err));
    NMLP_RETURN_IF_FAILED(nmlp_linear_create(out, e->kernels, weight, bias, e->pool, err));
    if (!nmlp_linear_is_finite(*out)) NMLP_RETURN_IF_FAILED(check(e, weight, err));
    if (nmlp_linear_owns_weight(*out)) release_source(weight);
    return NMLP_OK;
}

static nmlp_status check_mlp(nmlp_engine *e, const nmlp_layer *source, nmlp_err *err) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        NMLP_RETURN_IF_FAILED(check(e, &source->mlp[i].w, err));
        NMLP_RETURN_IF_FAILED(check(e, &source->mlp[i].u, err));
        NMLP_RETURN_IF_FAILED(check(e, &source->mlp[i].v, err));
    }
    return NMLP_OK;
}

static nmlp_status make_mlp(nmlp_engine *e, nmlp_engine_layer *layer, const nmlp_layer *source, nmlp_err *err) {
    nmlp_mlp_desc desc = {
        .gate = source->mlp[NMLP_MLP_GATE], .up = source->mlp[NMLP_MLP_UP], .down = source->mlp[NMLP_MLP_DOWN]};
    NMLP_RETURN_IF_FAILED(nmlp_mlp_create(&layer->mlp, e->kernels, &desc, e->pool, err));
    if (!nmlp_mlp_is_finite(layer->mlp)) NMLP_RETURN_IF_FAILED(check_mlp(e, source, err));
    if (!nmlp_mlp_owns_weights(layer->mlp)) return NMLP_OK;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        release_source(&source->mlp[i].w);
        release_source(&source->mlp[i].u);
        release_source(&source->mlp[i].v);
    }
    return NMLP_OK;
}

static nmlp_status make_layer(nmlp_engine *e, int64_t l, nmlp_err *err) {
    const nmlp_layer *source = &e->model->layers[l];
    nmlp_engine_layer *layer = &e->layers[l];
    NMLP_RETURN_IF_FAILED(copy_vector(e, &layer->attention_norm, &source->attention_norm, err));
    NMLP_RETURN_IF_FAILED(copy_vector(e, &layer->mlp_norm, &source->mlp_norm, err));
    NMLP_RETURN_IF_FAILED(copy_vector(e, &layer->q_norm, &source->q_norm, err));
    NMLP_RETURN_IF_FAILED(copy_vector(e, &layer->k_norm, &source->k_norm, err));
    NMLP_RETURN_IF_FAILED(make_linear(e, &layer->q, &source->q, &source->q_bias, err));
    NMLP_RETURN_IF_FAILED(make_linear(e, &layer->k, &source->k, &source->k_bias, err));
    NMLP_RETURN_IF_FAILED(make_linear(e, &layer->v, &source->v, &source->v_bias, err));
    NMLP_RETURN_IF_FAILED(make_linear(e, &layer->o, &source->o, &source->o_bias, err));
    return make_mlp(e, layer, source, err);
}

static nmlp_status make_layers(nmlp_engine *e, const nmlp_progress *progress, nmlp_err *err) {
    int64_t n = e->model->config.n_layers;
    e->layers = nmlp_arena_new(&e->arena, (size_t)n, sizeof *e->layers, err);
    if (!e->layers) return NMLP_E_NOMEM;
    for (int64_t l = 0; l < n; l++) {
        NMLP_RETURN_IF_FAILED(make_layer(e, l, err));
        if (!nmlp_progress_update(progress, "preparing", (double)(l + 1), (double)n, "layers"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "loading was stopped");
    }
    return NMLP_OK;
}

nmlp_status nmlp_engine_create(nmlp_engine **out, const nmlp_model *model, const nmlp_engine_options *options,
                               nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_cpu cpu = nmlp_cpu_detect();
    nmlp_view no_bias = {0};
    *out = NULL;
    nmlp_engine *e = nmlp_mem_new(1, sizeof *e, err);
    if (!e) return NMLP_E_NOMEM;
    e->model = model;
    e->pool = options->pool;
    nmlp_arena_init(&e->arena);
    NMLP_TRY((options->bf16 ? nmlp_kernels_select_bf16 : nmlp_kernels_select)(&e->kernels, &cpu, options->isa, err));
    e->check_finite = !options->skip_finite_check;
    if (model->embedding.data != model->lm_head.data) {
        NMLP_TRY(check(e, &model->embedding, err));
        release_source(&model->embedding);
    }
    NMLP_TRY(copy_vector(e, &e->final_norm, &model->final_norm, err));
    /* The head is the largest matrix: packed first, its source is gone again before the layers need memory. */
    NMLP_TRY(make_linear(e, &e->lm_head, &model->lm_head, &no_bias, err));
    NMLP_TRY(make_layers(e, options->progress, err));
    *out = e;
out:
    if (st != NMLP_OK) nmlp_engine_destroy(e);
    return st;
}

void nmlp_engine_destroy(nmlp_engine *e) {
    if (!e) return;
    for (int64_t l = 0; e->layers && l < e->model->config.n_layers; l++) {
        nmlp_engine_layer *layer = &e->layers[l];
        nmlp_linear_destroy(layer->q);
        nmlp_linear_destroy(layer->k);
        nmlp_linear_destroy(layer->v);
        nmlp_linear_destroy(layer->o);
        nmlp_mlp_destroy(layer->mlp);
        nmlp_mlp_destroy(layer->replaced);
    }
    nmlp_linear_destroy(e->lm_head);
    nmlp_arena_fini(&e->arena);
    nmlp_mem_free(e);
}

const nmlp_model *nmlp_engine_model(const nmlp_engine *e) { return e->model; }
const char *nmlp_engine_isa(const nmlp_engine *e) {
    return e->gpu ? nmlp_cuda_engine_name(e->gpu) : nmlp_kernels_name(e->kernels);
}
nmlp_pool *nmlp_engine_pool(const nmlp_engine *e) { return e->pool; }

nmlp_status nmlp_engine_set_mlp(nmlp_engine *e, int64_t l, const nmlp_mlp_desc *desc, nmlp_err *err) {
    nmlp_engine_layer *layer = &e->layers[l];
    nmlp_mlp *made = NULL;
    if (desc) NMLP_RETURN_IF_FAILED(nmlp_mlp_create(&made, e->kernels, desc, e->pool, err));
    if (layer->replaced) { /* drop the stand-in */
        nmlp_mlp_destroy(layer->mlp);
        layer->mlp = layer->replaced;
        layer->replaced = NULL;
    }
    if (made) {
        layer->replaced = layer->mlp;
        layer->mlp = made;
    }
    return NMLP_OK;
}
