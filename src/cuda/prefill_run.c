/* Many tokens at once: large matmuls, and the small kernels between them. */
#include <math.h>

#include "cuda/engine_int.h"

nmlp_status nmlp_cuda_prefill_lay_out(nmlp_cuda_session *s, nmlp_err *err) {
    const nmlp_cuda_engine *e = s->engine;
    const nmlp_config *c = &e->model->config;
    nmlp_cuda_prefill *p = &s->prefill;
    nmlp_cuda_block *block = &s->block;
    p->rows = s->context < NMLP_CUDA_PREFILL_ROWS ? (int32_t)s->context : NMLP_CUDA_PREFILL_ROWS;
    size_t rows = (size_t)p->rows;
    size_t hidden = (size_t)nmlp_cuda_pad(c->hidden);
    size_t q_dim = (size_t)(c->n_heads * c->head_dim);
    p->ids = nmlp_cuda_block_take(block, rows * sizeof *p->ids);
    p->hidden = nmlp_cuda_block_take(block, rows * hidden * sizeof(float));
    p->normed = nmlp_cuda_block_take(block, rows * hidden * 2);
    p->qkv = nmlp_cuda_block_take(block, rows * (size_t)nmlp_cuda_pad(e->layers[0].qkv.n) * sizeof(float));
    p->q = nmlp_cuda_block_take(block, rows * q_dim * 2);
    p->mixed = nmlp_cuda_block_take(block, rows * (size_t)nmlp_cuda_pad((int64_t)q_dim) * 2);
    const nmlp_cuda_mlp_weights **all = nmlp_mem_new((size_t)c->n_layers, sizeof *all, err);
    if (!all) return NMLP_E_NOMEM;
    for (int64_t l = 0; l < c->n_layers; l++) all[l] = &e->layers[l].mlp;
    nmlp_cuda_mlp_rows_take(&p->mlp, block, all, c->n_layers, p->rows);
    nmlp_mem_free(all);
    void *workspace = nmlp_cuda_block_take(block, NMLP_CUDA_BLAS_WORKSPACE_BYTES);
    return block->committed ? nmlp_cuda_blas_create(&p->blas, workspace, err) : NMLP_OK;
}

static nmlp_status multiply(nmlp_cuda_session *s, float *y, bool accumulate, const void *x, const nmlp_cuda_matrix *w, int32_t n,
                            nmlp_err *err) {
    nmlp_cuda_gemm g = {.y = y,
                        .x = x,
                        .w = w->data,
                        .s = n,
                        .n = w->n,
                        .k = w->k,
                        .y_pitch = nmlp_cuda_pad(w->n),
                        .x_pitch = w->k,
                        .w_pitch = w->k,
                        .y_is_f32 = 1,
                        .accumulate = accumulate};
    return nmlp_cuda_blas_run(s->prefill.blas, &g, s->stream, err);
}

static nmlp_status run_attention(nmlp_cuda_session *s, int64_t l, int32_t n, nmlp_err *err) {
    const nmlp_cuda_layer *layer = &s->engine->layers[l];
    const nmlp_config *c = &s->engine->model->config;
    nmlp_cuda_prefill *p = &s->prefill;
    int32_t pitch = nmlp_cuda_pad(c->hidden);
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_launch_rmsnorm(p->normed, p->hidden, layer->attention_norm, (float)c->rms_eps, n,
                                                                   (int32_t)c->hidden, pitch, s->stream),
                                          "launching a norm", err));
    NMLP_RETURN_IF_FAILED(multiply(s, p->qkv, false, p->normed, &layer->qkv, n, err));
    nmlp_cuda_heads heads = {.qkv = p->qkv,
                             .bias = layer->qkv_bias,
                             .q_norm = layer->q_norm,
                             .k_norm = layer->k_norm,
                             .rope = s->rope,
                             .q = p->q,
                             .k_cache = s->k[l],
                             .v_cache = s->v[l],
                             .out = p->mixed,
                             .eps = (float)c->rms_eps,
                             .scale = 1.0f / sqrtf((float)c->head_dim),
                             .s = n,
                             .first = (int32_t)s->length,
                             .pitch = nmlp_cuda_pad(layer->qkv.n),
                             .out_pitch = layer->o.k,
                             .n_heads = (int32_t)c->n_heads,
                             .n_kv_heads = (int32_t)c->n_kv_heads,
                             .head_dim = (int32_t)c->head_dim,
                             .context = (int32_t)s->context};
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_launch_heads(&heads, s->stream), "launching the rotation", err));
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_launch_attention(&heads, s->stream), "launching attention", err));
    NMLP_RETURN_IF_FAILED(multiply(s, p->hidden, true, p->mixed, &layer->o, n, err));
    if (!layer->o_bias) return NMLP_OK;
    return NMLP_CUDA_CHECK(nmlp_cuda_launch_add_bias(p->hidden, layer->o_bias, n, (int32_t)c->hidden, pitch, s->stream),
                           "launching a bias", err);
}

static nmlp_status run_mlp(nmlp_cuda_session *s, int64_t l, int32_t n, nmlp_err *err) {
    const nmlp_cuda_layer *layer = &s->engine->layers[l];
    const nmlp_config *c = &s->engine->model->config;
    nmlp_cuda_prefill *p = &s->prefill;
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_launch_rmsnorm(p->normed, p->hidden, layer->mlp_norm, (float)c->rms_eps, n,
                                                                   (int32_t)c->hidden, nmlp_cuda_pad(c->hidden), s->stream),
                                          "launching a norm", err));
    nmlp_cuda_mlp_many many = {.w = &layer->mlp,
                               .rows = &p->mlp,
                               .x = p->normed,
                               .y = p->hidden,
                               .accumulate = true,
                               .s = n,
                               .blas = p->blas,
                               .stream = s->stream};
    return nmlp_cuda_mlp_many_run(&many, err);
}

nmlp_status nmlp_cuda_prefill_run(nmlp_cuda_session *s, const int32_t *ids, int32_t n, nmlp_err *err) {
    const nmlp_cuda_engine *e = s->engine;
    nmlp_cuda_prefill *p = &s->prefill;
    int32_t pitch = nmlp_cuda_pad(e->model->config.hidden);
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(
        cudaMemcpyAsync(p->ids, ids, (size_t)n * sizeof *ids, cudaMemcpyHostToDevice, s->stream), "uploading tokens", err));
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_launch_embed(p->hidden, e->embedding.data, p->ids, n, pitch, s->stream),
                                          "launching the embedding", err));
    for (int64_t l = 0; l < e->model->config.n_layers; l++) {
        NMLP_RETURN_IF_FAILED(run_attention(s, l, n, err));
        NMLP_RETURN_IF_FAILED(run_mlp(s, l, n, err));
    }
    return NMLP_CUDA_CHECK(cudaMemcpyAsync(s->hidden, p->hidden + (int64_t)(n - 1) * pitch, (size_t)pitch * sizeof(float),
                                           cudaMemcpyDeviceToDevice, s->stream),
                           "keeping the last row", err);
}
