/* Many tokens at once: large matmuls, and the small kernels between them. */
#include <math.h>

#include "cuda/engine_internal.h"
#include "cuda/tensor_map.h"

nmlp_status nmlp_cuda_prefill_lay_out(nmlp_cuda_prefill *p, const nmlp_cuda_engine *e, nmlp_cuda_arena *arena,
                                      int64_t most, nmlp_err *err) {
    const nmlp_config *c = &e->model->config;
    p->rows = (int32_t)most;
    size_t rows = (size_t)p->rows;
    size_t hidden = (size_t)nmlp_cuda_pad(c->hidden);
    size_t q_dim = (size_t)(c->n_heads * c->head_dim);
    p->ids = nmlp_cuda_arena_take(arena, rows * sizeof *p->ids);
    p->hidden = nmlp_cuda_arena_take(arena, rows * hidden * sizeof(float));
    p->normed = nmlp_cuda_arena_take(arena, rows * hidden * 2);
    p->qkv = nmlp_cuda_arena_take(arena, rows * (size_t)nmlp_cuda_pad(e->layers[0].qkv.n) * sizeof(float));
    p->q = nmlp_cuda_arena_take(arena, rows * q_dim * 2);
    p->mixed = nmlp_cuda_arena_take(arena, rows * (size_t)nmlp_cuda_pad((int64_t)q_dim) * 2);
    const nmlp_cuda_mlp_weights **all = nmlp_mem_new((size_t)c->n_layers, sizeof *all, err);
    if (!all) return NMLP_E_NOMEM;
    for (int64_t l = 0; l < c->n_layers; l++) all[l] = &e->layers[l].mlp;
    nmlp_cuda_mlp_gemm_buffers_take(&p->mlp, arena, all, c->n_layers, p->rows);
    nmlp_mem_free(all);
    void *workspace = nmlp_cuda_arena_take(arena, NMLP_CUDA_BLAS_WORKSPACE_BYTES);
    return arena->committed ? nmlp_cuda_blas_create(&p->blas, workspace, true, err) : NMLP_OK;
}

nmlp_status nmlp_cuda_prefill_gemm(const nmlp_cuda_prefill_pass *pass, float *y, bool accumulate, const void *x,
                                   const nmlp_cuda_matrix *w, int32_t n, nmlp_err *err) {
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
    return nmlp_cuda_blas_run(pass->prefill->blas, &g, pass->stream, err);
}

nmlp_status nmlp_cuda_prefill_norm(const nmlp_cuda_prefill_pass *pass, float *x, const float *weight, int32_t n,
                                   nmlp_err *err) {
    const nmlp_config *c = &pass->engine->model->config;
    const nmlp_cuda_add_norm a = {.out = pass->prefill->normed,
                                  .hidden = x,
                                  .weight = weight,
                                  .eps = (float)c->rms_eps,
                                  .n = n,
                                  .dim = (int32_t)c->hidden,
                                  .pitch = nmlp_cuda_pad(c->hidden)};
    return NMLP_CUDA_CHECK(nmlp_cuda_batch_add_norm(&a, pass->stream), "launching a norm", err);
}

nmlp_status nmlp_cuda_cache_maps_make(nmlp_cuda_cache_maps **out, const nmlp_cuda_engine *e, void *const *k,
                                      void *const *v, int64_t positions, nmlp_err *err) {
    const nmlp_config *c = &e->model->config;
    const int32_t dim = (int32_t)c->head_dim;
    const int64_t rows = c->n_kv_heads * positions;
    *out = NULL;
    if (!nmlp_cuda_attention_has_sm90(dim) || rows > INT32_MAX) return NMLP_OK;
    nmlp_cuda_cache_maps *maps = nmlp_mem_new((size_t)c->n_layers, sizeof *maps, err);
    nmlp_status st = maps ? NMLP_OK : NMLP_E_NOMEM;
    for (int64_t l = 0; st == NMLP_OK && l < c->n_layers; l++) {
        st = nmlp_cuda_tensor_map_make(&maps[l].k, k[l], (int32_t)rows, dim, dim, NMLP_CUDA_PAGE_POSITIONS, err);
        if (st == NMLP_OK)
            st = nmlp_cuda_tensor_map_make(&maps[l].v, v[l], (int32_t)rows, dim, dim, NMLP_CUDA_PAGE_POSITIONS, err);
    }
    if (st == NMLP_OK)
        *out = maps;
    else
        nmlp_mem_free(maps);
    return st;
}

static nmlp_status run_heads(const nmlp_cuda_prefill_pass *pass, const nmlp_cuda_attention *heads, int64_t l,
                             nmlp_err *err) {
    static const char doing[] = "launching attention";
    if (!pass->maps || pass->text_begin)
        return NMLP_CUDA_CHECK(nmlp_cuda_launch_attention(heads, pass->stream), doing, err);
    const nmlp_cuda_attention_sm90 job = {.cache = pass->maps[l],
                                          .q = heads->q,
                                          .out = heads->out,
                                          .context = heads->context,
                                          .n_rows = heads->s,
                                          .position = heads->first,
                                          .n_tiles = nmlp_cuda_divide_up(heads->s, NMLP_CUDA_ATTENTION_TILE_ROWS),
                                          .out_pitch = heads->out_pitch,
                                          .n_heads = heads->n_heads,
                                          .n_kv_heads = heads->n_kv_heads,
                                          .head_dim = heads->head_dim,
                                          .n_multiprocessors = pass->engine->device.n_blocks};
    return NMLP_CUDA_CHECK(nmlp_cuda_attention_sm90_launch(&job, pass->stream), doing, err);
}

static nmlp_status run_attention(const nmlp_cuda_prefill_pass *pass, int64_t l, int32_t n, nmlp_err *err) {
    const nmlp_cuda_layer *layer = &pass->engine->layers[l];
    const nmlp_config *c = &pass->engine->model->config;
    nmlp_cuda_prefill *p = pass->prefill;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_prefill_norm(pass, p->hidden, layer->attention_norm, n, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_prefill_gemm(pass, p->qkv, false, p->normed, &layer->qkv, n, err));
    nmlp_cuda_attention heads = {.qkv = p->qkv,
                                 .bias = layer->qkv_bias,
                                 .q_norm = layer->q_norm,
                                 .k_norm = layer->k_norm,
                                 .rope = pass->rope,
                                 .q = p->q,
                                 .k_cache = pass->k[l],
                                 .v_cache = pass->v[l],
                                 .out = p->mixed,
                                 .text_begin = pass->text_begin,
                                 .eps = (float)c->rms_eps,
                                 .scale = 1.0f / sqrtf((float)c->head_dim),
                                 .s = n,
                                 .first = (int32_t)pass->first,
                                 .pitch = nmlp_cuda_pad(layer->qkv.n),
                                 .out_pitch = layer->o.k,
                                 .n_heads = (int32_t)c->n_heads,
                                 .n_kv_heads = (int32_t)c->n_kv_heads,
                                 .head_dim = (int32_t)c->head_dim,
                                 .context = (int32_t)pass->context};
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(nmlp_cuda_launch_rope_append(&heads, pass->stream), "launching the rotation", err));
    NMLP_RETURN_IF_FAILED(run_heads(pass, &heads, l, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_prefill_gemm(pass, p->hidden, true, p->mixed, &layer->o, n, err));
    if (!layer->o_bias) return NMLP_OK;
    return NMLP_CUDA_CHECK(nmlp_cuda_launch_add_bias(p->hidden, layer->o_bias, n, (int32_t)c->hidden,
                                                     nmlp_cuda_pad(c->hidden), pass->stream),
                           "launching a bias", err);
}

static nmlp_status run_mlp(const nmlp_cuda_prefill_pass *pass, int64_t l, int32_t n, nmlp_err *err) {
    const nmlp_cuda_layer *layer = &pass->engine->layers[l];
    nmlp_cuda_prefill *p = pass->prefill;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_prefill_norm(pass, p->hidden, layer->mlp_norm, n, err));
    nmlp_cuda_mlp_gemm many = {.w = &layer->mlp,
                               .rows = &p->mlp,
                               .x = p->normed,
                               .y = p->hidden,
                               .accumulate = true,
                               .s = n,
                               .n_multiprocessors = pass->engine->device.n_blocks,
                               .blas = p->blas,
                               .stream = pass->stream};
    return nmlp_cuda_mlp_gemm_run(&many, err);
}

nmlp_status nmlp_cuda_prefill_run(const nmlp_cuda_prefill_pass *pass, const int32_t *ids, int32_t n, nmlp_err *err) {
    const nmlp_cuda_engine *e = pass->engine;
    nmlp_cuda_prefill *p = pass->prefill;
    int32_t pitch = nmlp_cuda_pad(e->model->config.hidden);
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(cudaMemcpyAsync(p->ids, ids, (size_t)n * sizeof *ids, cudaMemcpyHostToDevice, pass->stream),
                        "uploading tokens", err));
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(nmlp_cuda_launch_embed(p->hidden, e->embedding.data, p->ids, n, pitch, pass->stream),
                        "launching the embedding", err));
    for (int64_t l = 0; l < e->model->config.n_layers; l++) {
        NMLP_RETURN_IF_FAILED(run_attention(pass, l, n, err));
        NMLP_RETURN_IF_FAILED(run_mlp(pass, l, n, err));
    }
    return NMLP_OK;
}
