#include "cuda/batch/gemm_stream_plan.h"

#include "cuda/tensor_map.h"

enum {
    STAGES_MIN = 6, /* what keeps the memory busy, and one that is multiplied */
    STAGE_BYTES = NMLP_CUDA_GEMM_STREAM_ROWS * NMLP_CUDA_GEMM_STREAM_COLS * 2
};

/* As few tiles as rows of 64 allow, and then all of them as short as that many may be. */
static void cut(nmlp_cuda_gemm_stream *g) {
    int32_t rounds = nmlp_cuda_divide_up(g->n, g->n_blocks * NMLP_CUDA_GEMM_STREAM_ROWS);
    g->tile_rows = nmlp_cuda_divide_up(g->n, g->n_blocks * rounds);
    g->n_tiles = nmlp_cuda_divide_up(g->n, g->tile_rows);
    g->n_blocks = nmlp_cuda_smaller(g->n_blocks, g->n_tiles);
}

/* What X leaves. */
static int32_t stages_of(const nmlp_cuda_gemm_stream *g, size_t shared_bytes) {
    size_t fixed = nmlp_cuda_gemm_stream_shared_bytes(g);
    if (g->n_slabs > NMLP_CUDA_GEMM_STREAM_SLABS_MAX || fixed > shared_bytes) return 0;
    int32_t n = (int32_t)((shared_bytes - fixed) / STAGE_BYTES);
    return n < STAGES_MIN ? 0 : nmlp_cuda_smaller(n, NMLP_CUDA_GEMM_STREAM_STAGES_MAX);
}

static nmlp_status put_maps(char *maps, const nmlp_cuda_gemm_stream *g, const nmlp_cuda_gemm_call *call,
                            nmlp_err *err) {
    nmlp_cuda_tensor_map made[2];
    int32_t k = call->w->k;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_tensor_map_make(&made[0], call->w->data, call->w->n, k, k, g->tile_rows, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_tensor_map_make(&made[1], call->x, call->s, k, call->x_pitch,
                                                    nmlp_cuda_mlp_cluster4_tokens(call->s), err));
    _Static_assert(sizeof made == 2 * NMLP_CUDA_TENSOR_MAP_BYTES, "maps lie one after the other");
    return NMLP_CUDA_CHECK(cudaMemcpy(maps, made, sizeof made, cudaMemcpyHostToDevice), "uploading tensor maps", err);
}

nmlp_status nmlp_cuda_gemm_stream_plan(nmlp_cuda_gemm_stream *g, const nmlp_cuda_gemm_call *call,
                                       const nmlp_cuda_device *device, nmlp_cuda_arena *arena, nmlp_err *err) {
    char *maps = nmlp_cuda_arena_take(arena, 2 * NMLP_CUDA_TENSOR_MAP_BYTES);
    *g = (nmlp_cuda_gemm_stream){.w_map = maps,
                                 .x_map = maps + NMLP_CUDA_TENSOR_MAP_BYTES,
                                 .y = call->y,
                                 .y_pitch = call->y_pitch,
                                 .s = call->s,
                                 .n = call->w->n,
                                 .n_slabs = call->w->k / NMLP_CUDA_GEMM_STREAM_COLS,
                                 .n_blocks = device->n_blocks};
    cut(g);
    if (device->n_clusters > 0) g->n_stages = stages_of(g, device->shared_bytes);
    if (g->n_stages == 0 || !arena->committed) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(nmlp_cuda_gemm_stream_prepare(g->s, device->shared_bytes), "readying the head's kernel", err));
    return put_maps(maps, g, call, err);
}
