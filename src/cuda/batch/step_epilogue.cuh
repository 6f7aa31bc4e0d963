/* What ends a tile of step.cu: sums of warps and split-K ranges, 1/rms of rows, the residual stream. */
#ifndef NMLP_CUDA_BATCH_STEP_EPILOGUE_CUH
#define NMLP_CUDA_BATCH_STEP_EPILOGUE_CUH

#include "cuda/batch/step_program.h"
#include "cuda/mlp/mlp_rows32_sm80_epilogue.cuh"

namespace {

enum { SQUARES_PER_LANE = NMLP_CUDA_STEP_SQUARES_MAX / 32, GROUPS_MOST = 4 };

struct step_shared {
    shared_head head;
    float scales[2][NMLP_CUDA_MLP_ROWS_MAX];                       /* 1/rms, of this phase and the one before */
    float squares[NMLP_CUDA_MLP_ROWS_MAX * GROUPS_MOST * M16 / 2]; /* of the pairs of a tile */
};

__device__ __forceinline__ float get_float(const float *from) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return __uint_as_float(v);
}

__device__ __forceinline__ bool is_written(float v) { return __float_as_uint(v) != unwritten; }

__device__ __forceinline__ void put_pair(__nv_bfloat16 *to, float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(*reinterpret_cast<const uint32_t *>(&pair))
                 : "memory");
}

template <class T>
__device__ __forceinline__ T *words_at(const nmlp_cuda_step_words &w, const nmlp_cuda_step_program &prog,
                                       uint32_t set) {
    return reinterpret_cast<T *>(static_cast<char *>(w.at) + (w.in_set ? set * prog.set_bytes : 0));
}

/* ---- 1/rms ---- */

/* A lane's sums of squares of the rows its warp adds: row warp + 8 i. */
template <int NT> struct square_sums {
    float v[NT][SQUARES_PER_LANE];
};

template <int NT>
__device__ __forceinline__ void ask_squares(square_sums<NT> &q, const nmlp_cuda_step_program &prog,
                                            const nmlp_cuda_step_phase &ph, uint32_t set) {
    const float *from = words_at<const float>(ph.squares, prog, set);
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int token = (int)(threadIdx.x >> 5) + i * WARPS;
#pragma unroll
        for (int j = 0; j < SQUARES_PER_LANE; j++) {
            const int part = (int)(threadIdx.x & 31) + 32 * j;
            q.v[i][j] = part < ph.n_squares && token < prog.s ? get_float(from + token * ph.n_squares + part) : 0.0f;
        }
    }
}

template <int NT>
__device__ __forceinline__ void put_scales(float *scales, square_sums<NT> &q, const nmlp_cuda_step_program &prog,
                                           const nmlp_cuda_step_phase &ph, uint32_t set) {
    for (;;) {
        bool there = true;
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < SQUARES_PER_LANE; j++) there = there && is_written(q.v[i][j]);
        if (there) break;
        ask_squares(q, prog, ph, set);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < SQUARES_PER_LANE; j++) sum += q.v[i][j];
        for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        const int token = (int)(threadIdx.x >> 5) + i * WARPS;
        if ((threadIdx.x & 31) == 0) scales[token] = rsqrtf(sum / (float)prog.norm_dim + prog.eps);
    }
}

/* ---- results ---- */

/* Pairs of neighbouring rows of W of all tokens that a block finishes: all of the tile, or its split's share. */
struct pair_range {
    int begin;
    int end;
};

__device__ __forceinline__ pair_range pairs_of(const nmlp_cuda_step_program &prog, const nmlp_cuda_mlp_rows32_phase &ph,
                                               const block_tile &p) {
    const int n = prog.s * ph.groups * (M16 / 2);
    if (ph.n_splits == 1) return {0, n};
    return {min(n, p.split * ph.split_pairs), min(n, (p.split + 1) * ph.split_pairs)};
}

/* What a thread's pairs are added to. */
template <int NT> struct add_input {
    float2 before[NT];
    float2 weight[NT];
    float2 bias[NT];
};

template <int NT>
__device__ __forceinline__ void ask_before(add_input<NT> &in, const nmlp_cuda_step_program &prog,
                                           const nmlp_cuda_step_phase &ph, const block_tile &p, uint32_t set) {
    const int pairs = ph.gemm.groups * (M16 / 2);
    const pair_range range = pairs_of(prog, ph.gemm, p);
    const float *before = words_at<const float>(ph.before, prog, set);
#pragma unroll
    for (int k = 0; k < NT; k++) {
        const int i = range.begin + (int)threadIdx.x + k * WARPS * 32;
        in.before[k] = in.weight[k] = in.bias[k] = make_float2(0, 0);
        if (i >= range.end) continue;
        const int token = i * ph.gemm.pairs_inverse >> 16;
        const int row = p.row + (i - token * pairs) * 2;
        if (row >= ph.gemm.out_pitch) continue;
        in.before[k] = get_floats(before + (int64_t)token * ph.gemm.out_pitch + row);
        in.weight[k] = *reinterpret_cast<const float2 *>(ph.norm_weight + row);
        if (ph.bias) in.bias[k] = *reinterpret_cast<const float2 *>(ph.bias + row);
    }
}

/* The residual stream's new values, and their squares. */
__device__ __forceinline__ float add_pair(const nmlp_cuda_step_program &prog, const nmlp_cuda_step_phase &ph, int token,
                                          int row, float2 y, float2 before, float2 weight, float2 bias, uint32_t set) {
    if (row >= ph.gemm.out_pitch) return 0;
    const int64_t at = (int64_t)token * ph.gemm.out_pitch + row;
    while (!is_written(before.x) || !is_written(before.y))
        before = get_floats(words_at<const float>(ph.before, prog, set) + at);
    const float2 h = make_float2(before.x + (y.x + bias.x), before.y + (y.y + bias.y));
    __nv_bfloat16 *x = reinterpret_cast<__nv_bfloat16 *>(static_cast<char *>(ph.gemm.out) +
                                                         (ph.out_in_set ? set * prog.set_bytes : 0));
    put_pair(x + at, h.x * weight.x, h.y * weight.y);
    put_floats(words_at<float>(ph.hidden, prog, set) + at, h);
    return h.x * h.x + h.y * h.y;
}

__device__ __forceinline__ void put_step_result(const nmlp_cuda_step_program &prog, const nmlp_cuda_step_phase &ph,
                                                int token, int row, const result &r, uint32_t set) {
    const nmlp_cuda_mlp_rows32_phase &gemm = ph.gemm;
    const int64_t at = (int64_t)token * gemm.out_pitch + row;
    char *out = static_cast<char *>(gemm.out) + (ph.out_in_set ? set * prog.set_bytes : 0);
    float2 y = r.y[0];
    if (gemm.n_factors == 2) y = make_float2(silu(y.x) * r.y[1].x, silu(y.y) * r.y[1].y);
    if (ph.output == NMLP_CUDA_STEP_LOGITS) {
        if (row < gemm.n) reinterpret_cast<float *>(out)[at] = y.x;
        if (row + 1 < gemm.n) reinterpret_cast<float *>(out)[at + 1] = y.y;
    } else if (row < gemm.out_pitch) {
        if (ph.output == NMLP_CUDA_STEP_F32)
            put_floats(reinterpret_cast<float *>(out) + at, y);
        else
            put_pair(reinterpret_cast<__nv_bfloat16 *>(out) + at, y.x, y.y);
    }
}

/* Sums of squares of every token's pairs in the tile, a warp each, to the next phase. */
template <int NT>
__device__ __forceinline__ void put_squares(const nmlp_cuda_step_program &prog, const nmlp_cuda_step_phase &ph,
                                            const block_tile &p, const float *squares, const pair_range range,
                                            uint32_t set) {
    const int pairs = ph.gemm.groups * (M16 / 2);
    const int n_parts = n_tiles(ph.gemm);
    float *out = words_at<float>(ph.squares_out, prog, set) + p.number * ph.gemm.n_splits + p.split;
    consumer_sync();
#pragma unroll
    for (int k = 0; k < NT; k++) {
        const int token = (int)(threadIdx.x >> 5) + k * WARPS;
        const int lane = threadIdx.x & 31;
        const int i = token * pairs + lane;
        float sum = lane < pairs && i >= range.begin && i < range.end ? squares[i] : 0.0f;
        for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (lane == 0 && token < prog.s)
            asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(out + token * n_parts), "r"(__float_as_uint(sum))
                         : "memory");
    }
}

template <int NT>
__device__ __forceinline__ void store_step_tile(const nmlp_cuda_step_program &prog, const nmlp_cuda_step_phase &ph,
                                                const block_tile &p, const float *sums, step_shared *sh,
                                                const float *scales, const add_input<NT> &in, uint32_t set) {
    const nmlp_cuda_mlp_rows32_phase &gemm = ph.gemm;
    const int pairs = gemm.groups * (M16 / 2);
    const int n = prog.s * pairs;
    const int64_t factor_floats = 2 * (int64_t)n;
    const int64_t split_floats = factor_floats * gemm.n_factors;
    float *parts = gemm.n_splits > 1
                       ? reinterpret_cast<float *>(static_cast<char *>(gemm.parts) + set * prog.set_bytes) +
                             p.number * gemm.n_splits * split_floats
                       : nullptr;
    for (int i = threadIdx.x; parts && i < n; i += WARPS * 32) {
        const int token = i * gemm.pairs_inverse >> 16;
        const result r = sum_of_warps<NT>(sums, gemm, token, (i - token * pairs) * 2);
        float *to = parts + p.split * split_floats + 2 * (int64_t)i;
        put_floats(to, r.y[0]);
        if (gemm.n_factors == 2) put_floats(to + factor_floats, r.y[1]);
    }
    const pair_range range = pairs_of(prog, gemm, p);
#pragma unroll
    for (int k = 0; k < NT; k++) {
        const int i = range.begin + (int)threadIdx.x + k * WARPS * 32;
        if (i >= range.end) continue;
        const int token = i * gemm.pairs_inverse >> 16;
        const int row = (i - token * pairs) * 2;
        result r;
        if (parts) {
            r.y[0] = poll_and_sum(parts + 2 * (int64_t)i, split_floats, gemm.n_splits);
            r.y[1] = gemm.n_factors == 2
                         ? poll_and_sum(parts + factor_floats + 2 * (int64_t)i, split_floats, gemm.n_splits)
                         : make_float2(0, 0);
        } else {
            r = sum_of_warps<NT>(sums, gemm, token, row);
        }
        const float scale = ph.scaled ? scales[token] : 1.0f;
        const float scale0 = ph.scaled & 1 ? scale : 1.0f;
        const float scale1 = ph.scaled & 2 ? scale : 1.0f;
        r.y[0] = make_float2(r.y[0].x * scale0, r.y[0].y * scale0);
        r.y[1] = make_float2(r.y[1].x * scale1, r.y[1].y * scale1);
        if (ph.output == NMLP_CUDA_STEP_ADD)
            sh->squares[i] =
                add_pair(prog, ph, token, p.row + row, r.y[0], in.before[k], in.weight[k], in.bias[k], set);
        else
            put_step_result(prog, ph, token, p.row + row, r, set);
    }
    if (ph.output == NMLP_CUDA_STEP_ADD) put_squares<NT>(prog, ph, p, sh->squares, range, set);
}

} // namespace

#endif
