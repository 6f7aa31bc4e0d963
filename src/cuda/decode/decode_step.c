#include "cuda/decode/decode_step.h"

#include <math.h>

static nmlp_status plan_attention(const nmlp_cuda_decode_step_call *call, nmlp_cuda_decode_plan *plan, int64_t l,
                                  nmlp_cuda_decode_rows *hidden, nmlp_err *err) {
    const nmlp_cuda_layer *layer = &call->engine->layers[l];
    const nmlp_config *c = &call->engine->model->config;
    nmlp_cuda_decode_rows qkv;
    hidden->norm_weight = layer->attention_norm;
    nmlp_cuda_decode_matmul project = {.w = {&layer->qkv},
                                       .x = {*hidden},
                                       .n_matrices = 1,
                                       .output = NMLP_CUDA_DECODE_STORE,
                                       .bias = layer->qkv_bias,
                                       .whole = true};
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_matmul(plan, &project, &qkv, err));
    hidden->embedding = NULL; /* what follows adds to it */
    int32_t width = layer->o.k;
    size_t chunks = NMLP_CUDA_DECODE_KEY_CHUNKS_MAX;
    nmlp_cuda_decode_phase attend = {
        .kind = NMLP_CUDA_DECODE_ATTENTION,
        .op = {{.x = qkv.x, .x_written_by = qkv.written_by}},
        .out = nmlp_cuda_arena_take(plan->arena, chunks * (size_t)width * NMLP_CUDA_DECODE_WORD_BYTES),
        .out_part_stride = width,
        .eps = (float)c->rms_eps,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .softmax = nmlp_cuda_arena_take(plan->arena, chunks * (size_t)c->n_heads * NMLP_CUDA_DECODE_SOFTMAX_STRIDE *
                                                         NMLP_CUDA_DECODE_WORD_BYTES),
        .q_norm = layer->q_norm,
        .k_norm = layer->k_norm,
        .rope = call->rope,
        .k_cache = call->k[l],
        .v_cache = call->v[l],
        .page_stride = call->page_stride,
        .head_stride = call->head_stride,
        .n_heads = (int32_t)c->n_heads,
        .n_kv_heads = (int32_t)c->n_kv_heads,
        .head_dim = (int32_t)c->head_dim};
    int32_t scratch = nmlp_cuda_decode_attention_elems((int32_t)c->head_dim);
    if (plan->input_elems < scratch) plan->input_elems = (scratch + 63) / 64 * 64;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_push(plan, &attend, err));
    nmlp_cuda_decode_rows heads = {.x = attend.out,
                                   .part_stride = width,
                                   .pitch = width,
                                   .parts = 1,
                                   .cols = (int32_t)(c->n_heads * c->head_dim),
                                   .written_by = (int32_t)plan->n_phases,
                                   .input = NMLP_CUDA_DECODE_HEADS};
    nmlp_cuda_decode_matmul mix = {.w = {&layer->o},
                                   .x = {heads},
                                   .n_matrices = 1,
                                   .output = NMLP_CUDA_DECODE_ADD,
                                   .out = (void *)(uintptr_t)hidden->x,
                                   .out_before = hidden->written_by,
                                   .bias = layer->o_bias,
                                   .whole = true};
    size_t at = plan->n_phases;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_matmul(plan, &mix, NULL, err));
    hidden->written_by = (int32_t)plan->n_phases;
    plan->phases[at].softmax = attend.softmax; /* the combining reader needs the pieces' sums */
    plan->phases[at].n_heads = attend.n_heads;
    plan->phases[at].head_dim = attend.head_dim;
    return NMLP_OK;
}

static nmlp_status plan_head(const nmlp_cuda_decode_step_call *call, nmlp_cuda_decode_plan *plan,
                             nmlp_cuda_decode_rows *hidden, nmlp_err *err) {
    hidden->norm_weight = call->engine->final_norm;
    nmlp_cuda_decode_matmul logits = {.w = {&call->engine->lm_head},
                                      .x = {*hidden},
                                      .n_matrices = 1,
                                      .output = NMLP_CUDA_DECODE_LOGITS,
                                      .out = call->logits,
                                      .whole = true};
    nmlp_cuda_decode_phase pick = {.kind = NMLP_CUDA_DECODE_PICK};
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_matmul(plan, &logits, NULL, err));
    return nmlp_cuda_decode_plan_push(plan, &pick, err);
}

static nmlp_status plan_step(const nmlp_cuda_decode_step_call *call, nmlp_cuda_decode_plan *plan,
                             nmlp_cuda_decode_rows *hidden, nmlp_err *err) {
    const nmlp_cuda_engine *e = call->engine;
    nmlp_cuda_arena *arena = plan->arena;
    void *residual = nmlp_cuda_arena_take(arena, (size_t)e->embedding.k * NMLP_CUDA_DECODE_WORD_BYTES);
    nmlp_cuda_decode_phase embed = {
        .kind = NMLP_CUDA_DECODE_EMBED, .op = {{.k = e->embedding.k}}, .out = residual, .embedding = e->embedding.data};
    size_t begin = arena->used_bytes;
    size_t end = begin;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_push(plan, &embed, err));
    hidden->x = residual;
    hidden->written_by = (int32_t)plan->n_phases;
    hidden->embedding = e->embedding.data;
    for (int64_t l = 0; l < e->model->config.n_layers; l++) {
        arena->used_bytes = begin; /* layers use the same memory one after the other */
        NMLP_RETURN_IF_FAILED(plan_attention(call, plan, l, hidden, err));
        hidden->norm_weight = e->layers[l].mlp_norm;
        NMLP_RETURN_IF_FAILED(
            nmlp_cuda_decode_plan_mlp(plan, &e->layers[l].mlp, hidden, NMLP_CUDA_DECODE_ADD, residual, err));
        if (arena->used_bytes > end) end = arena->used_bytes;
    }
    arena->used_bytes = end;
    return plan_head(call, plan, hidden, err);
}

nmlp_status nmlp_cuda_decode_step_plan(nmlp_cuda_decode_program *program, const nmlp_cuda_decode_step_call *call,
                                       bool head_only, nmlp_cuda_arena *arena, nmlp_err *err) {
    const nmlp_cuda_device *device = &call->engine->device;
    const nmlp_config *c = &call->engine->model->config;
    nmlp_status st = NMLP_OK;
    nmlp_cuda_decode_plan plan;
    nmlp_cuda_decode_rows hidden = {.x = call->hidden, /* what prefill left */
                                    .pitch = nmlp_cuda_pad(c->hidden),
                                    .cols = (int32_t)c->hidden,
                                    .parts = 1,
                                    .input = NMLP_CUDA_DECODE_NORM,
                                    .norm_dim = (int32_t)c->hidden,
                                    .eps = (float)c->rms_eps};
    nmlp_cuda_decode_plan_init(&plan, device, arena, 1);
    NMLP_TRY(head_only ? plan_head(call, &plan, &hidden, err) : plan_step(call, &plan, &hidden, err));
    NMLP_TRY(nmlp_cuda_decode_plan_finish(&plan, program, err));
    program->state = call->state;
    program->head_dim = (int32_t)c->head_dim;
    program->best = nmlp_cuda_arena_take(arena, 2 * (size_t)device->n_blocks * NMLP_CUDA_DECODE_WORD_BYTES);
    program->choices = call->choices;
out:
    nmlp_cuda_decode_plan_fini(&plan);
    return st;
}
