/* Both sides of residual.h in a kernel. */
#ifndef NMLP_CUDA_RESIDUAL_CUH
#define NMLP_CUDA_RESIDUAL_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/residual.h"

/* Two neighbouring columns of a row before a result is added. */
struct residual_pair {
    float2 before;
    float2 weight;
};

/* `n` of the two columns exist. */
__device__ __forceinline__ residual_pair load_residual(const nmlp_cuda_residual &r, int token, int col, int n) {
    residual_pair p = {};
    if (n <= 0) return p;
    p.before = __ldcg(reinterpret_cast<const float2 *>(r.hidden + (int64_t)token * r.pitch + col));
    p.weight = *reinterpret_cast<const float2 *>(r.weight + col);
    if (!r.bias) return p;
    const float2 bias = *reinterpret_cast<const float2 *>(r.bias + col);
    p.before.x += bias.x;
    p.before.y += bias.y;
    return p;
}

/* Adds y to it. Returns the sum of both squares. */
__device__ __forceinline__ float add_residual(const nmlp_cuda_residual &r, const residual_pair &p, int token, int col,
                                              int n, float2 y) {
    if (n <= 0) return 0;
    const int64_t at = (int64_t)token * r.pitch + col;
    const float2 h = make_float2(p.before.x + y.x, n > 1 ? p.before.y + y.y : 0.0f);
    *reinterpret_cast<float2 *>(r.hidden + at) = h;
    *reinterpret_cast<__nv_bfloat162 *>(static_cast<__nv_bfloat16 *>(r.x) + at) =
        __floats2bfloat162_rn(h.x * p.weight.x, h.y * p.weight.y);
    return h.x * h.x + h.y * h.y;
}

/* Stores the sum over the eight columns around `col` of what four lanes have, `apart` from each other. All lanes. */
__device__ __forceinline__ void put_squares(const nmlp_cuda_residual &r, int token, int col, bool stores, int apart,
                                            float squares) {
    squares += __shfl_xor_sync(0xffffffffu, squares, apart);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2 * apart);
    if (stores) r.squares[(int64_t)token * (r.pitch / NMLP_CUDA_SQUARES_COLS) + col / NMLP_CUDA_SQUARES_COLS] = squares;
}

/* A lane's sums of squares of its warp's rows: warp + i * WARPS. Eight columns each, for 2048 of a row all are in
 * flight at once. */
template <int ROWS> struct row_squares {
    float4 v[ROWS][2];
};

__device__ __forceinline__ float4 squares_at(const nmlp_cuda_row_scale &scale, int row, int part) {
    return part < scale.n_parts
               ? __ldcg(reinterpret_cast<const float4 *>(scale.squares + (int64_t)row * scale.n_parts + part))
               : float4{};
}

template <int ROWS, int WARPS>
__device__ __forceinline__ void load_squares(row_squares<ROWS> &q, const nmlp_cuda_row_scale &scale, int n_rows) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int row = (int)(threadIdx.x >> 5) + i * WARPS;
            q.v[i][j] = scale.squares && row < n_rows ? squares_at(scale, row, ((int)(threadIdx.x & 31) + j * 32) * 4)
                                                      : float4{};
        }
}

/* 1/rms of the warp's rows to `scales`; 1 where rows need none. */
template <int ROWS, int WARPS>
__device__ __forceinline__ void put_scales(float *scales, const row_squares<ROWS> &q, const nmlp_cuda_row_scale &scale,
                                           int n_rows) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = (int)(threadIdx.x >> 5) + i * WARPS;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 2; j++) sum += (q.v[i][j].x + q.v[i][j].y) + (q.v[i][j].z + q.v[i][j].w);
        if (scale.squares && row < n_rows)
            for (int part = ((int)(threadIdx.x & 31) + 64) * 4; part < scale.n_parts; part += 128) {
                const float4 v = squares_at(scale, row, part);
                sum += (v.x + v.y) + (v.z + v.w);
            }
        for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if ((threadIdx.x & 31) == 0) scales[row] = scale.squares ? rsqrtf(sum / (float)scale.dim + scale.eps) : 1.0f;
    }
}

#endif
