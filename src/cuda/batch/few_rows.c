/* Programs of a step of few rows: which kernel each of its GEMMs takes. Where every layer's MLP is on the cluster
 * kernel, and qkv and o fit in shared memory, norms are parts of the GEMMs around them (residual.h). */
#include "cuda/batch/batch_internal.h"
#include "cuda/batch/gemm_resident_plan.h"
#include "cuda/batch/gemm_stream_plan.h"

static bool same_matrix(const nmlp_cuda_matrix *a, const nmlp_cuda_matrix *b) { return a->n == b->n && a->k == b->k; }

static bool same_mlp(const nmlp_cuda_mlp_weights *a, const nmlp_cuda_mlp_weights *b) {
    return a->gate_rank == b->gate_rank && a->up_rank == b->up_rank && a->up_start == b->up_start &&
           same_matrix(&a->basis, &b->basis) && same_matrix(&a->gate, &b->gate) && same_matrix(&a->up, &b->up) &&
           same_matrix(&a->down_basis, &b->down_basis) && same_matrix(&a->down, &b->down);
}

/* The first layer before `l` with MLP matrices of the same shapes, or -1. */
static int64_t similar_layer(const nmlp_cuda_engine *e, int64_t l) {
    for (int64_t i = 0; i < l; i++)
        if (same_mlp(&e->layers[i].mlp, &e->layers[l].mlp)) return i;
    return -1;
}

static nmlp_status plan_mlp(nmlp_cuda_forward *f, nmlp_cuda_few_rows *few, int64_t l, nmlp_err *err) {
    const nmlp_cuda_engine *e = f->engine;
    const nmlp_cuda_mlp_weights *w = &e->layers[l].mlp;
    int32_t pitch = nmlp_cuda_pad(e->model->config.hidden);
    nmlp_cuda_few_layer *layer = &few->layers[l];
    const nmlp_cuda_mlp_call call = {
        .weights = w, .x = f->normed, .y = f->delta, .x_pitch = pitch, .y_pitch = pitch, .s = few->rows};
    int64_t similar = similar_layer(e, l);
    const nmlp_cuda_few_layer *like = similar >= 0 ? &few->layers[similar] : NULL;
    layer->mlp_kernel = NMLP_CUDA_FEW_GEMM;
    if (few->rows > nmlp_cuda_mlp_fused_rows(&e->device, nmlp_cuda_mlp_weights_bytes(w))) return NMLP_OK;
    if (nmlp_cuda_mlp_cluster4_fits(&call, &e->device)) {
        layer->mlp_kernel = NMLP_CUDA_FEW_CLUSTER4;
        return nmlp_cuda_mlp_cluster4_plan(&layer->cluster4, &call, like ? &like->cluster4 : NULL, &e->device,
                                           &f->arena, err);
    }
    layer->mlp_kernel = NMLP_CUDA_FEW_ROWS32;
    return nmlp_cuda_mlp_rows32_plan(&layer->rows32, &call, like ? &like->rows32 : NULL, &e->device, &f->arena, err);
}

static nmlp_cuda_gemm_call qkv_call(const nmlp_cuda_forward *f, int64_t l, int32_t rows) {
    const nmlp_cuda_matrix *w = &f->engine->layers[l].qkv;
    return (nmlp_cuda_gemm_call){
        .w = w, .x = f->normed, .y = f->qkv, .x_pitch = w->k, .y_pitch = nmlp_cuda_pad(w->n), .s = rows};
}

static nmlp_cuda_gemm_call o_call(const nmlp_cuda_forward *f, int64_t l, int32_t rows) {
    const nmlp_cuda_matrix *w = &f->engine->layers[l].o;
    return (nmlp_cuda_gemm_call){
        .w = w, .x = f->mixed, .y = f->delta, .x_pitch = w->k, .y_pitch = nmlp_cuda_pad(w->n), .s = rows};
}

/* qkv and o. */
static nmlp_status plan_gemm(nmlp_cuda_forward *f, nmlp_cuda_few_gemm *gemm, const nmlp_cuda_gemm_call *call,
                             const nmlp_cuda_few_gemm *like, nmlp_err *err) {
    const nmlp_cuda_device *device = &f->engine->device;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_gemm_resident_plan(&gemm->resident, call, device, &f->arena, err));
    if (gemm->resident.n8_tiles) return NMLP_OK;
    return nmlp_cuda_mlp_rows32_plan_gemm(&gemm->rows32, call, like ? &like->rows32 : NULL, device, &f->arena, err);
}

static bool can_fold_norms(const nmlp_cuda_forward *f, const nmlp_cuda_few_rows *few) {
    for (int64_t l = 0; l < f->engine->model->config.n_layers; l++) {
        const nmlp_cuda_few_layer *layer = &few->layers[l];
        if (layer->mlp_kernel != NMLP_CUDA_FEW_CLUSTER4 || !layer->qkv.resident.n8_tiles || !layer->o.resident.n8_tiles)
            return false;
    }
    return true;
}

/* The first norm and the last remain kernels. */
static void fold_norms(const nmlp_cuda_forward *f, nmlp_cuda_few_rows *few) {
    const nmlp_cuda_engine *e = f->engine;
    const nmlp_config *c = &e->model->config;
    int64_t n = c->n_layers;
    const nmlp_cuda_row_scale scale = {.squares = f->squares,
                                       .n_parts = nmlp_cuda_pad(c->hidden) / NMLP_CUDA_SQUARES_COLS,
                                       .dim = (int32_t)c->hidden,
                                       .eps = (float)c->rms_eps};
    const nmlp_cuda_residual residual = {
        .hidden = f->hidden, .x = f->normed, .squares = f->squares, .pitch = nmlp_cuda_pad(c->hidden)};
    for (int64_t l = 0; l < n; l++) {
        nmlp_cuda_few_layer *layer = &few->layers[l];
        if (l > 0) layer->qkv.resident.scale = scale;
        layer->o.resident.residual = residual;
        layer->o.resident.residual.bias = e->layers[l].o_bias;
        layer->o.resident.residual.weight = e->layers[l].mlp_norm;
        layer->cluster4.scale = scale;
        if (l + 1 == n) continue;
        layer->cluster4.residual = residual;
        layer->cluster4.residual.weight = e->layers[l + 1].attention_norm;
    }
}

static nmlp_status plan_head(nmlp_cuda_forward *f, nmlp_cuda_few_rows *few, nmlp_err *err) {
    const nmlp_cuda_engine *e = f->engine;
    const nmlp_cuda_gemm_call call = {.w = &e->lm_head,
                                      .x = f->head_input,
                                      .y = f->logits,
                                      .x_pitch = e->lm_head.k,
                                      .y_pitch = nmlp_cuda_pad(e->lm_head.n),
                                      .s = few->rows};
    NMLP_RETURN_IF_FAILED(nmlp_cuda_gemm_stream_plan(&few->head.stream, &call, &e->device, &f->arena, err));
    if (few->head.stream.n_stages) return NMLP_OK;
    return nmlp_cuda_mlp_rows32_plan_gemm(&few->head.rows32, &call, NULL, &e->device, &f->arena, err);
}

nmlp_status nmlp_cuda_few_rows_plan(nmlp_cuda_forward *f, nmlp_cuda_few_rows *few, nmlp_err *err) {
    const nmlp_cuda_engine *e = f->engine;
    for (int64_t l = 0; l < e->model->config.n_layers; l++) {
        nmlp_cuda_few_layer *layer = &few->layers[l];
        const nmlp_cuda_gemm_call qkv = qkv_call(f, l, few->rows);
        const nmlp_cuda_gemm_call o = o_call(f, l, few->rows);
        const nmlp_cuda_few_layer *like = l > 0 ? &few->layers[0] : NULL;
        NMLP_RETURN_IF_FAILED(plan_gemm(f, &layer->qkv, &qkv, like ? &like->qkv : NULL, err));
        NMLP_RETURN_IF_FAILED(plan_gemm(f, &layer->o, &o, like ? &like->o : NULL, err));
        NMLP_RETURN_IF_FAILED(plan_mlp(f, few, l, err));
    }
    few->folds_norms = can_fold_norms(f, few);
    if (few->folds_norms) fold_norms(f, few);
    return plan_head(f, few, err);
}
