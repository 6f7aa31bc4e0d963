#include "cuda/batch/gemm_resident_plan.h"

#include "cuda/tensor_map.h"

/* As few rows of W in a cluster as leave one wave of them, a block on each multiprocessor: every block reads X. */
static int32_t tiles_of_cluster(const nmlp_cuda_gemm_resident *like, const nmlp_cuda_device *device) {
    enum { MOST = 8 };
    nmlp_cuda_gemm_resident g = *like;
    for (g.n8_tiles = NMLP_CUDA_GEMM_RESIDENT_BLOCKS; g.n8_tiles <= MOST;
         g.n8_tiles += NMLP_CUDA_GEMM_RESIDENT_BLOCKS) {
        if (nmlp_cuda_gemm_resident_shared_bytes(&g) > device->shared_bytes) return 0;
        int32_t most = nmlp_cuda_smaller(device->n_blocks / NMLP_CUDA_GEMM_RESIDENT_BLOCKS,
                                         nmlp_cuda_gemm_resident_clusters(&g, device->shared_bytes));
        if (nmlp_cuda_divide_up(g.n, g.n8_tiles * NMLP_CUDA_GEMM_RESIDENT_N8) <= most) return g.n8_tiles;
    }
    return 0;
}

static nmlp_status put_map(void *to, const void *data, int32_t n, int32_t k, int32_t pitch, int32_t box_rows,
                           nmlp_err *err) {
    nmlp_cuda_tensor_map map;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_tensor_map_make(&map, data, n, k, pitch, box_rows, err));
    return NMLP_CUDA_CHECK(cudaMemcpy(to, &map, sizeof map, cudaMemcpyHostToDevice), "uploading a tensor map", err);
}

nmlp_status nmlp_cuda_gemm_resident_plan(nmlp_cuda_gemm_resident *g, const nmlp_cuda_gemm_call *call,
                                         const nmlp_cuda_device *device, nmlp_cuda_arena *arena, nmlp_err *err) {
    char *maps = nmlp_cuda_arena_take(arena, 2 * NMLP_CUDA_TENSOR_MAP_BYTES);
    *g = (nmlp_cuda_gemm_resident){.w_map = maps,
                                   .x_map = maps + NMLP_CUDA_TENSOR_MAP_BYTES,
                                   .y = call->y,
                                   .y_pitch = call->y_pitch,
                                   .s = call->s,
                                   .n = call->w->n,
                                   .n_slabs = call->w->k / NMLP_CUDA_GEMM_RESIDENT_COLS};
    if (device->n_clusters > 0) g->n8_tiles = tiles_of_cluster(g, device);
    if (g->n8_tiles == 0 || !arena->committed) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(put_map(maps, call->w->data, call->w->n, call->w->k, call->w->k,
                                  g->n8_tiles * NMLP_CUDA_GEMM_RESIDENT_N8, err));
    return put_map(maps + NMLP_CUDA_TENSOR_MAP_BYTES, call->x, call->s, call->w->k, call->x_pitch,
                   nmlp_cuda_mlp_cluster4_tokens(call->s), err);
}
