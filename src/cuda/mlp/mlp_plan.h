/* Planning the fused MLP of 5 to 32 rows: how each GEMM is tiled, where its results lie. Two kernels, two planners:
 * mlp_cluster4_sm90 where the device has clusters and the shape fits, mlp_rows32_sm80 everywhere else. */
#ifndef NMLP_CUDA_MLP_MLP_PLAN_H
#define NMLP_CUDA_MLP_MLP_PLAN_H

#include "cuda/device.h"
#include "cuda/mlp/mlp_cluster4_sm90.h"
#include "cuda/mlp/mlp_rows32_sm80.h"
#include "cuda/weights.h"

/* y f32 [S, y_pitch] = mlp(x bf16 [S, x_pitch]). */
typedef struct nmlp_cuda_mlp_call {
    const nmlp_cuda_mlp_weights *weights;
    const void *x;
    float *y;
    int32_t x_pitch;
    int32_t y_pitch;
    int32_t s;
} nmlp_cuda_mlp_call;

/* y f32 [S, y_pitch] = x bf16 [S, x_pitch] w^T, up to 32 rows: a program of one phase. */
typedef struct nmlp_cuda_gemm_call {
    const nmlp_cuda_matrix *w;
    const void *x;
    float *y;
    int32_t x_pitch;
    int32_t y_pitch;
    int32_t s;
} nmlp_cuda_gemm_call;

/* Whether the device has clusters and their shared memory is enough for the shape. */
bool nmlp_cuda_mlp_cluster4_fits(const nmlp_cuda_mlp_call *mlp, const nmlp_cuda_device *device);
/* All take memory from `arena` and are called twice, like everything that lays out an arena. `like` (may be NULL): the
 * program of other weights of the same shapes and the same x and y, whose intermediates it shares; their launches must
 * then follow one another in one stream. */
nmlp_status nmlp_cuda_mlp_cluster4_plan(nmlp_cuda_mlp_cluster4_program *program, const nmlp_cuda_mlp_call *mlp,
                                        const nmlp_cuda_mlp_cluster4_program *like, const nmlp_cuda_device *device,
                                        nmlp_cuda_arena *arena, nmlp_err *err);
nmlp_status nmlp_cuda_mlp_rows32_plan(nmlp_cuda_mlp_rows32_program *program, const nmlp_cuda_mlp_call *mlp,
                                      const nmlp_cuda_mlp_rows32_program *like, const nmlp_cuda_device *device,
                                      nmlp_cuda_arena *arena, nmlp_err *err);
nmlp_status nmlp_cuda_mlp_rows32_plan_gemm(nmlp_cuda_mlp_rows32_program *program, const nmlp_cuda_gemm_call *gemm,
                                           const nmlp_cuda_mlp_rows32_program *like, const nmlp_cuda_device *device,
                                           nmlp_cuda_arena *arena, nmlp_err *err);

/* Most rows for which the fused kernels were measured faster than large GEMMs, for an MLP of that many bytes. */
int32_t nmlp_cuda_mlp_fused_rows(const nmlp_cuda_device *device, size_t weight_bytes);

/* ---- the exchange buffer ----
 * Memory through which thread blocks hand results to each other within a launch. There are two copies: a launch uses
 * one and clears the other. While a plan is made, offsets into a copy stand for pointers. */

enum { NMLP_CUDA_EXCHANGE_ALIGN_BYTES = 256 };

static inline void *nmlp_cuda_exchange_take(int64_t *used, int64_t bytes) {
    int64_t at = *used;
    *used +=
        (bytes + NMLP_CUDA_EXCHANGE_ALIGN_BYTES - 1) / NMLP_CUDA_EXCHANGE_ALIGN_BYTES * NMLP_CUDA_EXCHANGE_ALIGN_BYTES;
    return (void *)(uintptr_t)at;
}

static inline void *nmlp_cuda_exchange_pointer(const void *offset, const char *base) {
    return (void *)(uintptr_t)(base + (uintptr_t)offset);
}

#endif
