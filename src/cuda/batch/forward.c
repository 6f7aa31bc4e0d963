/* One step of many rows through all layers, as launches on a stream. Up to 32 rows GEMMs run on the few-row kernels
 * (padded to 8, 16 or 32 rows), above that on cuBLASLt. */
#include <math.h>

#include "cuda/batch/batch_internal.h"

static const int32_t few_rows[NMLP_CUDA_FEW_BUCKETS] = {8, 16, 32};

nmlp_cuda_step_rows nmlp_cuda_forward_rows(const nmlp_cuda_forward *f, int32_t n) {
    int32_t *words = f->row_words;
    return (nmlp_cuda_step_rows){.ids = words,
                                 .position = words + n,
                                 .sequence = words + 2 * (int64_t)n,
                                 .inverse_temperature = (float *)(void *)(words + 3 * (int64_t)n),
                                 .seed = (uint32_t *)(words + 4 * (int64_t)n),
                                 .n_choices = (uint32_t *)(words + 5 * (int64_t)n),
                                 .head_rows = words + 6 * (int64_t)n};
}

/* ---- memory ---- */

static nmlp_status take_mlp_buffers(nmlp_cuda_forward *f, nmlp_err *err) {
    int64_t n = f->engine->model->config.n_layers;
    const nmlp_cuda_mlp_weights **all = nmlp_mem_new((size_t)n, sizeof *all, err);
    if (!all) return NMLP_E_NOMEM;
    for (int64_t l = 0; l < n; l++) all[l] = &f->engine->layers[l].mlp;
    nmlp_cuda_mlp_gemm_buffers_take(&f->mlp_buffers, &f->arena, all, n, f->max_rows);
    nmlp_mem_free(all);
    return NMLP_OK;
}

static void take_rows(nmlp_cuda_forward *f) {
    const nmlp_config *c = &f->engine->model->config;
    nmlp_cuda_arena *arena = &f->arena;
    size_t rows = (size_t)f->max_rows;
    size_t hidden = (size_t)nmlp_cuda_pad(c->hidden);
    size_t q_dim = (size_t)(c->n_heads * c->head_dim);
    size_t decode_rows = nmlp_cuda_batch_has_prompt_kernel((int32_t)c->head_dim) && f->max_sequences < f->max_rows
                             ? (size_t)f->max_sequences
                             : rows;
    f->row_words = nmlp_cuda_arena_take(arena, NMLP_CUDA_ROW_WORDS * rows * sizeof *f->row_words);
    f->tiles = nmlp_cuda_arena_take(arena, rows * sizeof *f->tiles);
    f->hidden = nmlp_cuda_arena_take(arena, rows * hidden * sizeof(float));
    f->delta = nmlp_cuda_arena_take(arena, rows * hidden * sizeof(float));
    f->normed = nmlp_cuda_arena_take(arena, rows * hidden * 2);
    f->qkv = nmlp_cuda_arena_take(arena, rows * (size_t)nmlp_cuda_pad(f->engine->layers[0].qkv.n) * sizeof(float));
    f->q = nmlp_cuda_arena_take(arena, rows * q_dim * 2);
    f->mixed = nmlp_cuda_arena_take(arena, rows * (size_t)nmlp_cuda_pad((int64_t)q_dim) * 2);
    f->squares = nmlp_cuda_arena_take(arena, (size_t)few_rows[NMLP_CUDA_FEW_BUCKETS - 1] * hidden /
                                                 NMLP_CUDA_SQUARES_COLS * sizeof *f->squares);
    f->partial = nmlp_cuda_arena_take(arena, decode_rows * (size_t)c->n_heads * NMLP_CUDA_ATTENTION_CHUNKS_MAX *
                                                 (size_t)(c->head_dim + 2) * sizeof(float));
    f->arrived = nmlp_cuda_arena_take(
        arena, (size_t)nmlp_cuda_batch_arrivals(f->max_rows, (int32_t)c->n_heads, (int32_t)c->n_kv_heads) *
                   sizeof *f->arrived);
    f->head_input = nmlp_cuda_arena_take(arena, NMLP_CUDA_LOGIT_ROWS * hidden * 2);
    f->logits = nmlp_cuda_arena_take(arena, NMLP_CUDA_LOGIT_ROWS * (size_t)nmlp_cuda_pad(c->vocab) * sizeof(float));
    f->best = nmlp_cuda_arena_take(arena, NMLP_CUDA_LOGIT_ROWS * sizeof *f->best);
}

static size_t page_bytes(const nmlp_cuda_forward *f) {
    const nmlp_config *c = &f->engine->model->config;
    return (size_t)(c->n_kv_heads * NMLP_CUDA_PAGE_POSITIONS * c->head_dim) * 2;
}

static nmlp_status plan_one(nmlp_cuda_forward *f, nmlp_err *err) {
    const nmlp_config *c = &f->engine->model->config;
    f->one_state = nmlp_cuda_arena_take(&f->arena, sizeof *f->one_state);
    f->one_logits = nmlp_cuda_arena_take(&f->arena, (size_t)nmlp_cuda_pad(c->vocab) * sizeof *f->one_logits);
    const nmlp_cuda_decode_step_call call = {.engine = f->engine,
                                             .rope = f->rope,
                                             .k = f->k_pages,
                                             .v = f->v_pages,
                                             .page_stride = c->n_kv_heads * NMLP_CUDA_PAGE_POSITIONS * c->head_dim,
                                             .head_stride = NMLP_CUDA_PAGE_POSITIONS * c->head_dim,
                                             .logits = f->one_logits,
                                             .state = f->one_state};
    return nmlp_cuda_decode_step_plan(&f->one, &call, false, &f->arena, err);
}

/* Called twice: to measure, and for real. */
static nmlp_status lay_out(nmlp_cuda_forward *f, const float *rope, nmlp_err *err) {
    const nmlp_config *c = &f->engine->model->config;
    nmlp_cuda_arena *arena = &f->arena;
    size_t rope_bytes = (size_t)(f->context * c->head_dim) * sizeof *rope;
    for (int64_t l = 0; l < c->n_layers; l++) {
        f->k_pages[l] = nmlp_cuda_arena_take(arena, (size_t)f->n_pages * page_bytes(f));
        f->v_pages[l] = nmlp_cuda_arena_take(arena, (size_t)f->n_pages * page_bytes(f));
    }
    f->rope = nmlp_cuda_arena_take(arena, rope_bytes);
    f->tables = nmlp_cuda_arena_take(arena, (size_t)f->max_sequences * (size_t)f->table_pages * sizeof *f->tables);
    take_rows(f);
    NMLP_RETURN_IF_FAILED(take_mlp_buffers(f, err));
    for (int i = 0; i < NMLP_CUDA_FEW_BUCKETS; i++) NMLP_RETURN_IF_FAILED(nmlp_cuda_few_rows_plan(f, &f->few[i], err));
    NMLP_RETURN_IF_FAILED(plan_one(f, err));
    void *workspace = nmlp_cuda_arena_take(arena, NMLP_CUDA_BLAS_WORKSPACE_BYTES);
    if (!arena->committed) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_blas_create(&f->blas, workspace, true, err));
    return NMLP_CUDA_CHECK(cudaMemcpy(f->rope, rope, rope_bytes, cudaMemcpyHostToDevice), "uploading the rotation",
                           err);
}

nmlp_status nmlp_cuda_forward_create(nmlp_cuda_forward *f, const float *rope, nmlp_err *err) {
    size_t n_layers = (size_t)f->engine->model->config.n_layers;
    size_t choices_bytes = (size_t)f->max_sequences * NMLP_CUDA_CHOICE_RING * sizeof *f->choices;
    void *pinned = NULL;
    nmlp_cuda_arena_init(&f->arena);
    f->k_pages = nmlp_mem_new(n_layers, sizeof *f->k_pages, err);
    f->v_pages = nmlp_mem_new(n_layers, sizeof *f->v_pages, err);
    if (!f->k_pages || !f->v_pages) return NMLP_E_NOMEM;
    for (int i = 0; i < NMLP_CUDA_FEW_BUCKETS; i++) {
        f->few[i].rows = few_rows[i];
        f->few[i].layers = nmlp_mem_new(n_layers, sizeof *f->few[i].layers, err);
        if (!f->few[i].layers) return NMLP_E_NOMEM;
    }
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(cudaMallocHost(&pinned, choices_bytes), "pinning host memory", err));
    f->choices = pinned;
    for (size_t i = 0; i < choices_bytes / sizeof *f->choices; i++) f->choices[i] = 0;
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(nmlp_cuda_batch_decode_attention_prepare(), "readying decode attention", err));
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(cudaStreamCreateWithFlags(&f->stream, cudaStreamNonBlocking), "making a stream", err));
    NMLP_RETURN_IF_FAILED(lay_out(f, rope, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_arena_commit(&f->arena, "a batch of that size", err));
    NMLP_RETURN_IF_FAILED(lay_out(f, rope, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_cache_maps_make(&f->maps, f->engine, f->k_pages, f->v_pages,
                                                    f->n_pages * NMLP_CUDA_PAGE_POSITIONS, err));
    return NMLP_CUDA_CHECK(cudaDeviceSynchronize(), "preparing a batch", err);
}

void nmlp_cuda_forward_destroy(nmlp_cuda_forward *f) {
    if (f->stream) (void)cudaStreamSynchronize(f->stream);
    if (f->stream) (void)cudaStreamDestroy(f->stream);
    if (f->choices) (void)cudaFreeHost(f->choices);
    nmlp_cuda_blas_destroy(f->blas);
    nmlp_cuda_arena_release(&f->arena);
    for (int i = 0; i < NMLP_CUDA_FEW_BUCKETS; i++) nmlp_mem_free(f->few[i].layers);
    nmlp_mem_free(f->maps);
    nmlp_mem_free(f->k_pages);
    nmlp_mem_free(f->v_pages);
}

/* ---- running ---- */

/* NULL: too many rows for them. */
static const nmlp_cuda_few_rows *few_for(const nmlp_cuda_forward *f, int32_t n) {
    for (int i = 0; i < NMLP_CUDA_FEW_BUCKETS; i++)
        if (n <= f->few[i].rows) return &f->few[i];
    return NULL;
}

int32_t nmlp_cuda_forward_step(int32_t n) { return n <= 256 ? 32 : 128; }

int32_t nmlp_cuda_forward_padded(const nmlp_cuda_forward *f, int32_t n) {
    const nmlp_cuda_few_rows *few = few_for(f, n);
    int32_t step = nmlp_cuda_forward_step(n);
    int32_t padded = few ? few->rows : nmlp_cuda_divide_up(n, step) * step;
    return nmlp_cuda_smaller(padded, f->max_rows);
}

static int launch_few_gemm(const nmlp_cuda_forward *f, const nmlp_cuda_few_gemm *few) {
    if (few->resident.n8_tiles) return nmlp_cuda_gemm_resident_launch(&few->resident, f->stream);
    if (few->stream.n_stages) return nmlp_cuda_gemm_stream_launch(&few->stream, f->stream);
    return nmlp_cuda_mlp_rows32_launch(&few->rows32, f->engine->device.n_blocks, f->stream);
}

/* y [n, N padded] f32 = x [n,K] w^T, by the few-row program where there is one. */
static nmlp_status run_gemm(nmlp_cuda_forward *f, const nmlp_cuda_few_gemm *few, float *y, const void *x,
                            const nmlp_cuda_matrix *w, int32_t n, nmlp_err *err) {
    if (few) return NMLP_CUDA_CHECK(launch_few_gemm(f, few), "launching a GEMM of few rows", err);
    nmlp_cuda_gemm g = {.y = y,
                        .x = x,
                        .w = w->data,
                        .s = n,
                        .n = w->n,
                        .k = w->k,
                        .y_pitch = nmlp_cuda_pad(w->n),
                        .x_pitch = w->k,
                        .w_pitch = w->k,
                        .y_is_f32 = 1};
    return nmlp_cuda_blas_run(f->blas, &g, f->stream, err);
}

/* hidden += delta + bias; normed = its norm. */
static nmlp_status add_norm(nmlp_cuda_forward *f, const float *delta, const float *bias, const float *weight, int32_t n,
                            nmlp_err *err) {
    const nmlp_config *c = &f->engine->model->config;
    const nmlp_cuda_add_norm a = {.out = f->normed,
                                  .hidden = f->hidden,
                                  .delta = delta,
                                  .bias = bias,
                                  .weight = weight,
                                  .eps = (float)c->rms_eps,
                                  .n = n,
                                  .dim = (int32_t)c->hidden,
                                  .pitch = nmlp_cuda_pad(c->hidden)};
    return NMLP_CUDA_CHECK(nmlp_cuda_batch_add_norm(&a, f->stream), "launching a norm", err);
}

static nmlp_status run_prompt_attention(nmlp_cuda_forward *f, const nmlp_cuda_paged_attention *a, int64_t l,
                                        nmlp_err *err) {
    static const char doing[] = "launching attention";
    if (!f->maps) return NMLP_CUDA_CHECK(nmlp_cuda_batch_prompt_attention(a, f->stream), doing, err);
    const nmlp_cuda_attention_sm90 job = {.cache = f->maps[l],
                                          .q = a->q,
                                          .out = a->out,
                                          .tables = a->tables,
                                          .tiles = a->tiles,
                                          .table_pages = a->table_pages,
                                          .n_tiles = a->n_tiles,
                                          .out_pitch = a->out_pitch,
                                          .n_heads = a->n_heads,
                                          .n_kv_heads = a->n_kv_heads,
                                          .head_dim = a->head_dim,
                                          .n_multiprocessors = f->engine->device.n_blocks};
    return NMLP_CUDA_CHECK(nmlp_cuda_attention_sm90_launch(&job, f->stream), doing, err);
}

static nmlp_status run_attention(nmlp_cuda_forward *f, const nmlp_cuda_step_shape *shape, int64_t l, nmlp_err *err) {
    const nmlp_cuda_layer *layer = &f->engine->layers[l];
    const nmlp_config *c = &f->engine->model->config;
    bool asks_l2 = few_for(f, shape->n_rows) && shape->n_tiles == 0;
    /* Then a decode row is the only one of its sequence: what it reads from pages is of earlier steps, and this step
     * began after they had ended (nmlp_cuda_batch_embed). Otherwise the launch before appends what is read here. */
    bool appends = nmlp_cuda_batch_has_prompt_kernel((int32_t)c->head_dim);
    const nmlp_cuda_paged_attention a = {.rows = nmlp_cuda_forward_rows(f, shape->n_rows),
                                         .qkv = f->qkv,
                                         .bias = layer->qkv_bias,
                                         .q_norm = layer->q_norm,
                                         .k_norm = layer->k_norm,
                                         .rope = f->rope,
                                         .q = f->q,
                                         .k_pages = f->k_pages[l],
                                         .v_pages = f->v_pages[l],
                                         .tables = f->tables,
                                         .out = f->mixed,
                                         .tiles = f->tiles,
                                         .next = layer->o.data,
                                         .next_bytes = asks_l2 ? (int64_t)nmlp_cuda_matrix_bytes(&layer->o) : 0,
                                         .asks_early = asks_l2,
                                         .keys_settled = appends,
                                         .partial = f->partial,
                                         .arrived = f->arrived,
                                         .eps = (float)c->rms_eps,
                                         .scale = 1.0f / sqrtf((float)c->head_dim),
                                         .n_rows = shape->n_rows,
                                         .n_decode_rows = shape->n_decode_rows,
                                         .appends = appends,
                                         .n_tiles = shape->n_tiles,
                                         .n_chunks = shape->n_chunks,
                                         .qkv_pitch = nmlp_cuda_pad(layer->qkv.n),
                                         .out_pitch = layer->o.k,
                                         .n_heads = (int32_t)c->n_heads,
                                         .n_kv_heads = (int32_t)c->n_kv_heads,
                                         .head_dim = (int32_t)c->head_dim,
                                         .table_pages = f->table_pages,
                                         .n_multiprocessors = f->engine->device.n_blocks};
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_batch_rope_append(&a, f->stream), "launching the rotation", err));
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(nmlp_cuda_batch_decode_attention(&a, f->stream), "launching decode attention", err));
    return run_prompt_attention(f, &a, l, err);
}

static nmlp_status run_mlp(nmlp_cuda_forward *f, const nmlp_cuda_few_layer *few, int64_t l, int32_t n, nmlp_err *err) {
    const nmlp_cuda_engine *e = f->engine;
    static const char doing[] = "launching the fused MLP";
    if (few && few->mlp_kernel == NMLP_CUDA_FEW_CLUSTER4)
        return NMLP_CUDA_CHECK(nmlp_cuda_mlp_cluster4_launch(&few->cluster4, f->stream), doing, err);
    if (few && few->mlp_kernel == NMLP_CUDA_FEW_ROWS32)
        return NMLP_CUDA_CHECK(nmlp_cuda_mlp_rows32_launch(&few->rows32, e->device.n_blocks, f->stream), doing, err);
    const nmlp_cuda_mlp_gemm gemm = {.w = &e->layers[l].mlp,
                                     .rows = &f->mlp_buffers,
                                     .x = f->normed,
                                     .y = f->delta,
                                     .s = n,
                                     .n_multiprocessors = e->device.n_blocks,
                                     .blas = f->blas,
                                     .stream = f->stream};
    return nmlp_cuda_mlp_gemm_run(&gemm, err);
}

nmlp_status nmlp_cuda_forward_layers(nmlp_cuda_forward *f, const nmlp_cuda_step_shape *shape, nmlp_err *err) {
    const nmlp_cuda_engine *e = f->engine;
    const nmlp_cuda_few_rows *few = few_for(f, shape->n_rows);
    const nmlp_cuda_step_rows rows = nmlp_cuda_forward_rows(f, shape->n_rows);
    int32_t n = shape->n_rows;
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_batch_embed(f->hidden, e->embedding.data, &rows, n,
                                                                nmlp_cuda_pad(e->model->config.hidden), f->stream),
                                          "launching the embedding", err));
    bool norms = !(few && few->folds_norms);
    for (int64_t l = 0; l < e->model->config.n_layers; l++) {
        const nmlp_cuda_layer *layer = &e->layers[l];
        const nmlp_cuda_few_layer *here = few ? &few->layers[l] : NULL;
        if (norms || l == 0)
            NMLP_RETURN_IF_FAILED(add_norm(f, l ? f->delta : NULL, NULL, layer->attention_norm, n, err));
        NMLP_RETURN_IF_FAILED(run_gemm(f, here ? &here->qkv : NULL, f->qkv, f->normed, &layer->qkv, n, err));
        NMLP_RETURN_IF_FAILED(run_attention(f, shape, l, err));
        NMLP_RETURN_IF_FAILED(run_gemm(f, here ? &here->o : NULL, f->delta, f->mixed, &layer->o, n, err));
        if (norms) NMLP_RETURN_IF_FAILED(add_norm(f, f->delta, layer->o_bias, layer->mlp_norm, n, err));
        NMLP_RETURN_IF_FAILED(run_mlp(f, here, l, n, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_cuda_forward_head(nmlp_cuda_forward *f, const nmlp_cuda_step_shape *shape, int32_t first, int32_t n,
                                   nmlp_err *err) {
    const nmlp_cuda_engine *e = f->engine;
    const nmlp_config *c = &e->model->config;
    const nmlp_cuda_step_rows rows = nmlp_cuda_forward_rows(f, shape->n_rows);
    const nmlp_cuda_few_rows *few = few_for(f, n);
    /* above the few one shape of GEMM: the plan of a new one takes milliseconds */
    int32_t padded = few ? n : NMLP_CUDA_LOGIT_ROWS;
    const nmlp_cuda_add_norm norm = {.out = f->head_input,
                                     .hidden = f->hidden,
                                     .delta = f->delta,
                                     .weight = e->final_norm,
                                     .gather = rows.head_rows + first,
                                     .eps = (float)c->rms_eps,
                                     .n = n,
                                     .dim = (int32_t)c->hidden,
                                     .pitch = nmlp_cuda_pad(c->hidden)};
    const nmlp_cuda_choose choose = {.rows = rows,
                                     .logits = f->logits,
                                     .best = f->best,
                                     .choices = f->choices,
                                     .first = first,
                                     .n = n,
                                     .vocab = (int32_t)c->vocab,
                                     .pitch = nmlp_cuda_pad(c->vocab)};
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_batch_add_norm(&norm, f->stream), "launching a norm", err));
    NMLP_RETURN_IF_FAILED(run_gemm(f, few ? &few->head : NULL, f->logits, f->head_input, &e->lm_head, padded, err));
    return NMLP_CUDA_CHECK(nmlp_cuda_batch_choose_launch(&choose, f->stream), "launching the choice", err);
}

nmlp_status nmlp_cuda_forward_set_one(nmlp_cuda_forward *f, const nmlp_cuda_decode_state *state, nmlp_err *err) {
    return NMLP_CUDA_CHECK(cudaMemcpyAsync(f->one_state, state, sizeof *state, cudaMemcpyHostToDevice, f->stream),
                           "setting the state", err);
}

nmlp_status nmlp_cuda_forward_one(nmlp_cuda_forward *f, int32_t sequence, int64_t n, nmlp_err *err) {
    _Static_assert((int)NMLP_CUDA_CHOICE_RING == (int)NMLP_CUDA_DECODE_CHOICES, "both keep as many choices");
    f->one.table = f->tables + (int64_t)sequence * f->table_pages;
    f->one.choices = f->choices + (int64_t)sequence * NMLP_CUDA_CHOICE_RING;
    f->one.n_steps = (int32_t)n;
    return NMLP_CUDA_CHECK(nmlp_cuda_decode_launch(&f->one, f->engine->device.n_blocks, f->stream),
                           "launching the decode kernel", err);
}

nmlp_status nmlp_cuda_forward_copy_page(nmlp_cuda_forward *f, int32_t to, int32_t from, nmlp_err *err) {
    size_t bytes = page_bytes(f);
    for (int64_t l = 0; l < f->engine->model->config.n_layers; l++) {
        char *pages[] = {f->k_pages[l], f->v_pages[l]};
        for (int i = 0; i < 2; i++)
            NMLP_RETURN_IF_FAILED(
                NMLP_CUDA_CHECK(cudaMemcpyAsync(pages[i] + (size_t)to * bytes, pages[i] + (size_t)from * bytes, bytes,
                                                cudaMemcpyDeviceToDevice, f->stream),
                                "copying a shared page", err));
    }
    return NMLP_OK;
}
