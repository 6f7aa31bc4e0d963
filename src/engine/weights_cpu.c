#include "engine/weights_cpu.h"

#include <string.h>

#include "base/file.h"
#include "base/ints.h"
#include "model/slices.h"

/* Packing checks every element on the way; this finds and names the bad one. */
static nmlp_status check(const nmlp_cpu_weights *w, const nmlp_view *view, nmlp_err *err) {
    return w->check_finite ? nmlp_model_check_tensor(w->model, view, w->pool, err) : NMLP_OK;
}

static nmlp_status copy_vector(nmlp_cpu_weights *w, float **out, const nmlp_view *view, nmlp_err *err) {
    *out = NULL;
    if (!view->data) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(check(w, view, err));
    size_t n = (size_t)nmlp_view_elems(view);
    *out = nmlp_arena_new(&w->arena, n, sizeof **out, err);
    if (!*out) return NMLP_E_NOMEM;
    nmlp_to_f32(*out, view->data, view->dtype, n);
    return NMLP_OK;
}

/* Some families keep the weight of a norm less 1. */
static nmlp_status copy_norm(nmlp_cpu_weights *w, float **out, const nmlp_view *view, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(copy_vector(w, out, view, err));
    if (!*out || !w->model->config.features->norm_plus_one) return NMLP_OK;
    for (int64_t i = 0; i < nmlp_view_elems(view); i++) (*out)[i] += 1.0f;
    return NMLP_OK;
}

static void release_source(const nmlp_view *view) {
    if (view->data) nmlp_file_map_release(view->data, nmlp_view_bytes(view));
}

static nmlp_status make_linear(nmlp_cpu_weights *w, nmlp_linear **out, const nmlp_view *weight, const nmlp_view *bias,
                               nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check(w, bias, err));
    NMLP_RETURN_IF_FAILED(nmlp_linear_create(out, w->kernels, weight, bias, w->pool, err));
    if (!nmlp_linear_is_finite(*out)) NMLP_RETURN_IF_FAILED(check(w, weight, err));
    if (nmlp_linear_owns_weight(*out)) release_source(weight);
    return NMLP_OK;
}

static nmlp_status make_stand_in(nmlp_cpu_weights *w, nmlp_linear **out, const nmlp_view *weight, const nmlp_view *bias,
                                 nmlp_err *err) {
    return nmlp_linear_create(out, w->kernels, weight, bias, w->pool, err);
}

/* q, k, v and o of `source` with the biases of `own`. Those of another layer than its own are in memory of any kind:
 * nothing of it is released. */
static nmlp_status make_attention(nmlp_cpu_weights *w, nmlp_cpu_projection out[NMLP_ATTENTION_MATRICES],
                                  const nmlp_layer *source, const nmlp_layer *own, nmlp_err *err) {
    nmlp_status (*const make)(nmlp_cpu_weights *, nmlp_linear **, const nmlp_view *, const nmlp_view *, nmlp_err *) =
        source == own ? make_linear : make_stand_in;
    const nmlp_view *const biases[] = {&own->q_bias, &own->k_bias, &own->v_bias, &own->o_bias};
    nmlp_view no_bias = {0};
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
        const nmlp_factors *f = &source->attention[i];
        bool has_basis = !(source->attention_shares_basis && i > 0 && i < NMLP_ATTENTION_O);
        out[i].rank = nmlp_factors_rank(f);
        if (out[i].rank > 0 && has_basis) NMLP_RETURN_IF_FAILED(make(w, &out[i].in, &f->v, &no_bias, err));
        NMLP_RETURN_IF_FAILED(make(w, &out[i].out, out[i].rank > 0 ? &f->u : &f->w, biases[i], err));
    }
    return NMLP_OK;
}

static void destroy_attention(nmlp_cpu_projection attention[NMLP_ATTENTION_MATRICES]) {
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
        nmlp_linear_destroy(attention[i].in);
        nmlp_linear_destroy(attention[i].out);
        attention[i] = (nmlp_cpu_projection){0};
    }
}

static nmlp_status check_mlp(nmlp_cpu_weights *w, const nmlp_factors mlp[NMLP_MLP_MATRICES], nmlp_err *err) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        NMLP_RETURN_IF_FAILED(check(w, &mlp[i].w, err));
        NMLP_RETURN_IF_FAILED(check(w, &mlp[i].u, err));
        NMLP_RETURN_IF_FAILED(check(w, &mlp[i].v, err));
    }
    return NMLP_OK;
}

static void release_mlp(const nmlp_factors mlp[NMLP_MLP_MATRICES]) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        release_source(&mlp[i].w);
        release_source(&mlp[i].u);
        release_source(&mlp[i].v);
    }
}

static nmlp_status make_mlp(nmlp_cpu_weights *w, nmlp_mlp **out, const nmlp_factors mlp[NMLP_MLP_MATRICES],
                            nmlp_err *err) {
    nmlp_mlp_desc desc = {.gate = mlp[NMLP_MLP_GATE],
                          .up = mlp[NMLP_MLP_UP],
                          .down = mlp[NMLP_MLP_DOWN],
                          .activation = w->model->config.activation};
    NMLP_RETURN_IF_FAILED(nmlp_mlp_create(out, w->kernels, &desc, w->pool, err));
    if (!nmlp_mlp_is_finite(*out)) NMLP_RETURN_IF_FAILED(check_mlp(w, mlp, err));
    if (nmlp_mlp_owns_weights(*out)) release_mlp(mlp);
    return NMLP_OK;
}

static nmlp_status make_experts(nmlp_cpu_weights *w, nmlp_cpu_layer *layer, const nmlp_layer *source, nmlp_err *err) {
    int64_t n = w->model->config.n_experts;
    nmlp_view no_bias = {0};
    layer->experts = nmlp_arena_new(&w->arena, (size_t)n, sizeof(nmlp_mlp *), err);
    if (!layer->experts) return NMLP_E_NOMEM;
    NMLP_RETURN_IF_FAILED(make_linear(w, &layer->router, &source->router, &no_bias, err));
    for (int64_t e = 0; e < n; e++) NMLP_RETURN_IF_FAILED(make_mlp(w, &layer->experts[e], source->experts[e].mlp, err));
    return NMLP_OK;
}

static nmlp_status make_slice(nmlp_cpu_weights *w, nmlp_cpu_layer *layer, const nmlp_layer *source, int64_t slice,
                              nmlp_err *err) {
    nmlp_factors mlp[NMLP_MLP_MATRICES];
    size_t bytes = nmlp_layer_slice_copy_bytes(source);
    void *copy = bytes > 0 ? nmlp_mem_new(bytes, 1, err) : NULL;
    if (bytes > 0 && !copy) return NMLP_E_NOMEM;
    layer->slice_copies[slice] = copy;
    nmlp_layer_slice(mlp, source, slice, copy);
    if (copy) NMLP_RETURN_IF_FAILED(check(w, &source->mlp[NMLP_MLP_DOWN].w, err));
    nmlp_mlp_desc desc = {.gate = mlp[NMLP_MLP_GATE],
                          .up = mlp[NMLP_MLP_UP],
                          .down = mlp[NMLP_MLP_DOWN],
                          .activation = w->model->config.activation};
    NMLP_RETURN_IF_FAILED(nmlp_mlp_create(&layer->slices[slice], w->kernels, &desc, w->pool, err));
    if (!nmlp_mlp_is_finite(layer->slices[slice])) NMLP_RETURN_IF_FAILED(check_mlp(w, source->mlp, err));
    if (!nmlp_mlp_owns_weights(layer->slices[slice])) return NMLP_OK;
    nmlp_mem_free(copy);
    layer->slice_copies[slice] = NULL;
    return NMLP_OK;
}

static nmlp_status make_slices(nmlp_cpu_weights *w, nmlp_cpu_layer *layer, const nmlp_layer *source, nmlp_err *err) {
    size_t n = (size_t)source->slices;
    layer->slices = nmlp_arena_new(&w->arena, n, sizeof(nmlp_mlp *), err);
    layer->slice_copies = nmlp_arena_new(&w->arena, n, sizeof(void *), err);
    if (!layer->slices || !layer->slice_copies) return NMLP_E_NOMEM;
    layer->n_slices = source->slices;
    for (int64_t s = 0; s < source->slices; s++) NMLP_RETURN_IF_FAILED(make_slice(w, layer, source, s, err));
    if (nmlp_mlp_owns_weights(layer->slices[0])) release_mlp(source->mlp);
    return NMLP_OK;
}

/* Of gate, up and down of a process's part. */
static nmlp_status make_split(nmlp_cpu_weights *w, nmlp_cpu_layer *layer, const nmlp_layer *source, nmlp_err *err) {
    nmlp_view no_bias = {0};
    nmlp_cpu_split_mlp *m = nmlp_arena_new(&w->arena, 1, sizeof *m, err);
    if (!m) return NMLP_E_NOMEM;
    layer->split = m;
    for (int i = NMLP_MLP_GATE; i <= NMLP_MLP_UP; i++) {
        const nmlp_factors *f = &source->mlp[i];
        bool dense = nmlp_factors_is_dense(f), has_basis = !dense && !(source->shared_basis && i == NMLP_MLP_UP);
        m->rank[i] = nmlp_factors_rank(f);
        if (has_basis) NMLP_RETURN_IF_FAILED(make_linear(w, &m->thin[i], &f->v, &no_bias, err));
        NMLP_RETURN_IF_FAILED(make_linear(w, &m->wide[i], dense ? &f->w : &f->u, &no_bias, err));
    }
    const nmlp_factors *down = &source->mlp[NMLP_MLP_DOWN];
    m->rank_down = nmlp_factors_rank(down);
    if (m->rank_down == 0) return make_linear(w, &m->down, &down->w, &no_bias, err);
    NMLP_RETURN_IF_FAILED(make_linear(w, &m->down, &down->v, &no_bias, err));
    return make_linear(w, &m->out, &down->u, &no_bias, err);
}

static void destroy_split(nmlp_cpu_split_mlp *m) {
    if (!m) return;
    for (int i = 0; i < 2; i++) {
        nmlp_linear_destroy(m->thin[i]);
        nmlp_linear_destroy(m->wide[i]);
    }
    nmlp_linear_destroy(m->down);
    nmlp_linear_destroy(m->out);
}

static nmlp_status make_norms(nmlp_cpu_weights *w, nmlp_cpu_layer *layer, const nmlp_layer *source, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(copy_norm(w, &layer->attention_norm, &source->attention_norm, err));
    NMLP_RETURN_IF_FAILED(copy_norm(w, &layer->attention_norm_post, &source->attention_norm_post, err));
    NMLP_RETURN_IF_FAILED(copy_norm(w, &layer->mlp_norm, &source->mlp_norm, err));
    NMLP_RETURN_IF_FAILED(copy_norm(w, &layer->mlp_norm_post, &source->mlp_norm_post, err));
    NMLP_RETURN_IF_FAILED(copy_norm(w, &layer->q_norm, &source->q_norm, err));
    return copy_norm(w, &layer->k_norm, &source->k_norm, err);
}

static nmlp_status make_matrices(nmlp_cpu_weights *w, int64_t l, nmlp_err *err) {
    const nmlp_layer *source = &w->model->layers[l];
    nmlp_cpu_layer *layer = &w->layers[l];
    NMLP_RETURN_IF_FAILED(make_attention(w, layer->attention, source, source, err));
    if (source->slices > 0) return make_slices(w, layer, source, err);
    if (source->thin_split) return make_split(w, layer, source, err);
    return source->experts ? make_experts(w, layer, source, err) : make_mlp(w, &layer->mlp, source->mlp, err);
}

/* Of a dense layer without experts. */
static void drop_matrices(nmlp_cpu_layer *layer) {
    destroy_attention(layer->attention);
    nmlp_mlp_destroy(layer->mlp);
    layer->mlp = NULL;
}

/* All where layers are not alike, since sessions are sized by the first. */
int64_t nmlp_cpu_weights_resident(const nmlp_model *model, int64_t bytes) {
    const nmlp_layer *first = &model->layers[0];
    int64_t layer_bytes = 0;
    if (bytes <= 0 || model->config.n_experts > 0 || model->config.compressed || model->config.quantised ||
        first->slices > 0 || first->thin_split)
        return model->config.n_layers;
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) layer_bytes += (int64_t)nmlp_view_bytes(&first->attention[i].w);
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) layer_bytes += (int64_t)nmlp_view_bytes(&first->mlp[i].w);
    return nmlp_min(nmlp_max(bytes / nmlp_max(layer_bytes, 1), 1), model->config.n_layers);
}

/* Those that do not stay are made too: that checks them. */
static nmlp_status make_layers(nmlp_cpu_weights *w, const nmlp_progress *progress, nmlp_err *err) {
    int64_t n = w->model->config.n_layers;
    w->layers = nmlp_arena_new(&w->arena, (size_t)n, sizeof *w->layers, err);
    if (!w->layers) return NMLP_E_NOMEM;
    int64_t n_placed[2] = {0}; /* without and with a window */
    for (int64_t l = 0; l < n; l++) {
        w->layers[l].place_in_pages = n_placed[nmlp_config_window(&w->model->config, l) > 0]++;
        NMLP_RETURN_IF_FAILED(make_norms(w, &w->layers[l], &w->model->layers[l], err));
        NMLP_RETURN_IF_FAILED(make_matrices(w, l, err));
        if (l >= w->n_resident) drop_matrices(&w->layers[l]);
        if (!nmlp_progress_update(progress, "preparing", (double)(l + 1), (double)n, "layers"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "loading was stopped");
    }
    return NMLP_OK;
}

nmlp_status nmlp_cpu_weights_create(nmlp_cpu_weights **out, const nmlp_model *model, const nmlp_engine_options *options,
                                    nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const nmlp_cpu *cpu = nmlp_cpu_get();
    nmlp_view no_bias = {0};
    *out = NULL;
    nmlp_cpu_weights *w = nmlp_mem_new(1, sizeof *w, err);
    if (!w) return NMLP_E_NOMEM;
    w->model = model;
    w->pool = options->pool;
    w->tensor_group = options->tensor_group;
    w->n_resident = nmlp_cpu_weights_resident(model, options->resident_bytes);
    w->held = -1;
    nmlp_arena_init(&w->arena);
    NMLP_TRY((options->bf16 ? nmlp_kernels_select_bf16 : nmlp_kernels_select)(&w->kernels, cpu, options->isa, err));
    w->check_finite = !options->skip_finite_check;
    if (model->embedding.data != model->lm_head.data) {
        NMLP_TRY(check(w, &model->embedding, err));
        release_source(&model->embedding);
    }
    NMLP_TRY(copy_norm(w, &w->final_norm, &model->final_norm, err));
    /* The head is the largest matrix: packed first, its source is released before the layers need memory. */
    NMLP_TRY(make_linear(w, &w->lm_head, &model->lm_head, &no_bias, err));
    NMLP_TRY(make_layers(w, options->progress, err));
    *out = w;
out:
    if (st != NMLP_OK) nmlp_cpu_weights_destroy(w);
    return st;
}

static void destroy_experts(nmlp_mlp **experts, int64_t n) {
    for (int64_t e = 0; experts && e < n; e++) nmlp_mlp_destroy(experts[e]);
}

void nmlp_cpu_weights_destroy(nmlp_cpu_weights *w) {
    if (!w) return;
    for (int64_t l = 0; w->layers && l < w->model->config.n_layers; l++) {
        nmlp_cpu_layer *layer = &w->layers[l];
        destroy_attention(layer->attention);
        destroy_attention(layer->replaced_attention);
        for (int64_t s = 0; s < layer->n_slices; s++) {
            nmlp_mlp_destroy(layer->slices[s]);
            nmlp_mem_free(layer->slice_copies[s]);
        }
        nmlp_linear_destroy(layer->router);
        if (!layer->slices && !layer->split) (void)nmlp_cpu_weights_set_mlp(w, l, NULL, NULL); /* drop a stand-in */
        destroy_split(layer->split);
        nmlp_mlp_destroy(layer->mlp);
        destroy_experts(layer->experts, w->model->config.n_experts);
    }
    nmlp_linear_destroy(w->lm_head);
    nmlp_arena_fini(&w->arena);
    nmlp_mem_free(w);
}

nmlp_status nmlp_cpu_weights_hold(nmlp_cpu_weights *w, int64_t l, nmlp_err *err) {
    if (l < w->n_resident || l == w->held) return NMLP_OK;
    nmlp_cpu_layer *last = w->held >= 0 ? &w->layers[w->held] : NULL;
    if (last && (last->replaced || last->replaced_attention[0].out))
        return nmlp_fail(err, NMLP_E_ARG, "layer %lld is wanted while another has a stand-in", (long long)l);
    if (last) drop_matrices(last);
    w->held = -1;
    nmlp_status st = make_matrices(w, l, err);
    if (st == NMLP_OK)
        w->held = l;
    else
        drop_matrices(&w->layers[l]);
    return st;
}

static nmlp_status make_replacement(const nmlp_cpu_weights *w, nmlp_mlp **out, const nmlp_mlp_desc *desc,
                                    nmlp_err *err) {
    nmlp_mlp_desc wanted = *desc;
    wanted.activation = w->model->config.activation;
    return nmlp_mlp_create(out, w->kernels, &wanted, w->pool, err);
}

static nmlp_status set_experts(nmlp_cpu_weights *w, nmlp_cpu_layer *layer, const nmlp_mlp_desc *descs, nmlp_err *err) {
    int64_t n = w->model->config.n_experts;
    nmlp_mlp **made = descs ? nmlp_mem_new((size_t)n, sizeof *made, err) : NULL;
    if (descs && !made) return NMLP_E_NOMEM;
    for (int64_t e = 0; descs && e < n; e++) {
        nmlp_status st = make_replacement(w, &made[e], &descs[e], err);
        if (st == NMLP_OK) continue;
        destroy_experts(made, n);
        nmlp_mem_free(made);
        return st;
    }
    if (layer->replaced_experts) {
        destroy_experts(layer->experts, n);
        nmlp_mem_free(layer->experts);
        layer->experts = layer->replaced_experts;
        layer->replaced_experts = NULL;
    }
    if (made) {
        layer->replaced_experts = layer->experts;
        layer->experts = made;
    }
    return NMLP_OK;
}

nmlp_status nmlp_cpu_weights_set_mlp(nmlp_cpu_weights *w, int64_t l, const nmlp_mlp_desc *desc, nmlp_err *err) {
    nmlp_cpu_layer *layer = &w->layers[l];
    nmlp_mlp *made = NULL;
    if (layer->slices || layer->split)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "layer %lld has %s, which cannot be replaced", (long long)l,
                         layer->slices ? "slices" : "factors that processes share");
    if (layer->experts) return set_experts(w, layer, desc, err);
    if (desc) NMLP_RETURN_IF_FAILED(nmlp_cpu_weights_hold(w, l, err));
    if (desc) NMLP_RETURN_IF_FAILED(make_replacement(w, &made, desc, err));
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

nmlp_status nmlp_cpu_weights_set_attention(nmlp_cpu_weights *w, int64_t l, const nmlp_layer *source, nmlp_err *err) {
    nmlp_cpu_layer *layer = &w->layers[l];
    nmlp_cpu_projection made[NMLP_ATTENTION_MATRICES] = {0};
    if (source) NMLP_RETURN_IF_FAILED(nmlp_cpu_weights_hold(w, l, err));
    if (source) {
        nmlp_status st = make_attention(w, made, source, &w->model->layers[l], err);
        if (st != NMLP_OK) {
            destroy_attention(made);
            return st;
        }
    }
    if (layer->replaced_attention[0].out) { /* drop the stand-in */
        destroy_attention(layer->attention);
        memcpy(layer->attention, layer->replaced_attention, sizeof layer->attention);
        memset(layer->replaced_attention, 0, sizeof layer->replaced_attention);
    }
    if (source) {
        memcpy(layer->replaced_attention, layer->attention, sizeof layer->attention);
        memcpy(layer->attention, made, sizeof made);
    }
    return NMLP_OK;
}
