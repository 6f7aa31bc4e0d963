/* A model's weights on the device. */
#include <stdio.h>

#include "cuda/engine_internal.h"

enum { HEADS_MAX = 128, HEAD_DIM_MAX = 128 };

static nmlp_status check_shapes(const nmlp_config *c, nmlp_err *err) {
    const char *beyond = nmlp_config_beyond_plain(c);
    if (beyond) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "the GPU backend does not know %s, which this %s model has", beyond,
                  c->family);
        nmlp_fail_hint(err, "use the device cpu");
        return NMLP_E_UNSUPPORTED;
    }
    if (c->n_heads <= HEADS_MAX && c->head_dim <= HEAD_DIM_MAX && c->head_dim % 8 == 0) return NMLP_OK;
    nmlp_fail(err, NMLP_E_UNSUPPORTED,
              "the GPU backend takes up to %d heads of up to %d columns in multiples of 8; the model has %lld of %lld",
              HEADS_MAX, HEAD_DIM_MAX, (long long)c->n_heads, (long long)c->head_dim);
    nmlp_fail_hint(err, "use the device cpu");
    return NMLP_E_UNSUPPORTED;
}

static nmlp_status lay_out_layer(nmlp_cuda_engine *e, int64_t l, nmlp_err *err) {
    const nmlp_layer *from = &e->model->layers[l];
    nmlp_cuda_layer *to = &e->layers[l];
    nmlp_cuda_arena *arena = &e->arena;
    const nmlp_view *qkv[] = {&from->attention[NMLP_ATTENTION_Q].w, &from->attention[NMLP_ATTENTION_K].w,
                              &from->attention[NMLP_ATTENTION_V].w};
    const nmlp_view *biases[] = {&from->q_bias, &from->k_bias, &from->v_bias};
    const nmlp_view *o[] = {&from->attention[NMLP_ATTENTION_O].w};
    const struct {
        float **to;
        const nmlp_view *from;
    } vectors[] = {{&to->attention_norm, &from->attention_norm},
                   {&to->mlp_norm, &from->mlp_norm},
                   {&to->q_norm, &from->q_norm},
                   {&to->k_norm, &from->k_norm},
                   {&to->o_bias, &from->o_bias}};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        NMLP_RETURN_IF_FAILED(nmlp_cuda_upload_vector(vectors[i].to, arena, &vectors[i].from, 1, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_upload_vector(&to->qkv_bias, arena, biases, 3, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_upload_matrix(&to->qkv, arena, qkv, 3, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_upload_matrix(&to->o, arena, o, 1, err));
    return nmlp_cuda_upload_mlp(&to->mlp, arena, &from->mlp[NMLP_MLP_GATE], &from->mlp[NMLP_MLP_UP],
                                &from->mlp[NMLP_MLP_DOWN], err);
}

/* Called twice: to measure, and to upload. */
static nmlp_status lay_out(nmlp_cuda_engine *e, const nmlp_progress *progress, nmlp_err *err) {
    const nmlp_model *m = e->model;
    const nmlp_view *embedding[] = {&m->embedding};
    const nmlp_view *lm_head[] = {&m->lm_head};
    const nmlp_view *final_norm[] = {&m->final_norm};
    int64_t n = m->config.n_layers;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_upload_matrix(&e->embedding, &e->arena, embedding, 1, err));
    e->lm_head = e->embedding;
    if (m->lm_head.data != m->embedding.data)
        NMLP_RETURN_IF_FAILED(nmlp_cuda_upload_matrix(&e->lm_head, &e->arena, lm_head, 1, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_upload_vector(&e->final_norm, &e->arena, final_norm, 1, err));
    for (int64_t l = 0; l < n; l++) {
        NMLP_RETURN_IF_FAILED(lay_out_layer(e, l, err));
        if (e->arena.committed && !nmlp_progress_update(progress, "uploading", (double)(l + 1), (double)n, "layers"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "loading was stopped");
    }
    return NMLP_OK;
}

nmlp_status nmlp_cuda_engine_create(nmlp_cuda_engine **out, const nmlp_model *model, const nmlp_progress *progress,
                                    nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_cuda_engine *e = nmlp_mem_new(1, sizeof *e, err);
    if (!e) return NMLP_E_NOMEM;
    nmlp_cuda_arena_init(&e->arena);
    e->model = model;
    NMLP_TRY(check_shapes(&model->config, err));
    NMLP_TRY(nmlp_cuda_device_open(&e->device, err));
    snprintf(e->name, sizeof e->name, "cuda (%s)", e->device.info.name);
    e->layers = nmlp_mem_new((size_t)model->config.n_layers, sizeof *e->layers, err);
    if (!e->layers) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(lay_out(e, progress, err));
    NMLP_TRY(nmlp_cuda_arena_commit(&e->arena, "the model", err));
    NMLP_TRY(lay_out(e, progress, err));
    NMLP_TRY(NMLP_CUDA_CHECK(cudaDeviceSynchronize(), "uploading the model", err));
    *out = e;
out:
    if (st != NMLP_OK) nmlp_cuda_engine_destroy(e);
    return st;
}

void nmlp_cuda_engine_destroy(nmlp_cuda_engine *e) {
    if (!e) return;
    nmlp_cuda_arena_release(&e->arena);
    nmlp_mem_free(e->layers);
    nmlp_mem_free(e);
}

const char *nmlp_cuda_engine_name(const nmlp_cuda_engine *e) { return e->name; }

size_t nmlp_cuda_engine_step_bytes(const nmlp_cuda_engine *e) {
    size_t bytes = nmlp_cuda_matrix_step_bytes(&e->lm_head);
    for (int64_t l = 0; l < e->model->config.n_layers; l++) {
        const nmlp_cuda_layer *layer = &e->layers[l];
        bytes += nmlp_cuda_matrix_step_bytes(&layer->qkv) + nmlp_cuda_matrix_step_bytes(&layer->o) +
                 nmlp_cuda_mlp_weights_step_bytes(&layer->mlp);
    }
    return bytes;
}
