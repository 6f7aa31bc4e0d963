/* The epilogue of a tile in mlp_rows32_sm80.cu: partial sums of warps and split-K ranges are added in fixed order and
 * stored for the next phase. */
#ifndef NMLP_CUDA_MLP_MLP_ROWS32_SM80_EPILOGUE_CUH
#define NMLP_CUDA_MLP_MLP_ROWS32_SM80_EPILOGUE_CUH

#include "cuda/mlp/mlp_rows32_sm80_block.cuh"

namespace {

__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }

/* Two neighbouring rows of W for one token, per factor. */
struct result {
    float2 y[2];
};

/* Adds what N warps have, from `first` on. */
template <int N> __device__ __forceinline__ float2 add_warps(const float *at, int warp_floats, int first) {
    float2 v[N];
#pragma unroll
    for (int w = 0; w < N; w++) v[w] = *reinterpret_cast<const float2 *>(at + (first + w) * warp_floats);
#pragma unroll
    for (int w = 1; w < N; w++) {
        v[0].x += v[w].x;
        v[0].y += v[w].y;
    }
    return v[0];
}

template <int NT>
__device__ __forceinline__ result sum_of_warps(const float *sums, const nmlp_cuda_mlp_rows32_phase &ph, int token,
                                               int row) {
    const int warp_floats = ph.groups * shape<NT>::group_sums;
    const float *at = sums + row / M16 * shape<NT>::group_sums + token * TOKEN_PITCH + row % M16;
    result r;
    if (ph.n_factors == 2) {
        r.y[0] = add_warps<WARPS / 2>(at, warp_floats, 0);
        r.y[1] = add_warps<WARPS / 2>(at, warp_floats, WARPS / 2);
    } else {
        r.y[0] = add_warps<WARPS>(at, warp_floats, 0);
        r.y[1] = make_float2(0, 0);
    }
    return r;
}

__device__ __forceinline__ void put_result(const nmlp_cuda_mlp_rows32_phase &ph, char *out, int token, int row,
                                           const result &r) {
    float2 y = r.y[0];
    if (ph.n_factors == 2) y = make_float2(silu(y.x) * r.y[1].x, silu(y.y) * r.y[1].y);
    const int64_t at = (int64_t)token * ph.out_pitch + row;
    if (ph.last) {
        float *to = reinterpret_cast<float *>(out) + at;
        if (row < ph.n) to[0] = y.x;
        if (row + 1 < ph.n) to[1] = y.y;
    } else if (row < ph.out_pitch) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(y.x, y.y);
        asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(reinterpret_cast<__nv_bfloat16 *>(out) + at),
                     "r"(*reinterpret_cast<const uint32_t *>(&pair))
                     : "memory");
    }
}

__device__ __forceinline__ void put_floats(float *to, float2 v) {
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(__float_as_uint(v.x)),
                 "r"(__float_as_uint(v.y))
                 : "memory");
}

__device__ __forceinline__ float2 get_floats(const float *from) {
    uint32_t a, b;
    asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(from) : "memory");
    return make_float2(__uint_as_float(a), __uint_as_float(b));
}

/* The same two values of every split, polled and added in order. */
__device__ __forceinline__ float2 poll_and_sum(const float *at, int64_t stride, int n_splits) {
    float2 v[NMLP_CUDA_MLP_ROWS32_SPLITS_MAX];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < NMLP_CUDA_MLP_ROWS32_SPLITS_MAX; i++)
            v[i] = i < n_splits ? get_floats(at + i * stride) : make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < NMLP_CUDA_MLP_ROWS32_SPLITS_MAX; i++)
            there = there && __float_as_uint(v[i].x) != unwritten && __float_as_uint(v[i].y) != unwritten;
    } while (!there);
    float2 sum = v[0];
#pragma unroll
    for (int i = 1; i < NMLP_CUDA_MLP_ROWS32_SPLITS_MAX; i++) {
        sum.x += v[i].x;
        sum.y += v[i].y;
    }
    return sum;
}

/* A tile's results: of all its columns where K is whole; else this split's share of them, after every split has
 * written what it has. */
template <int NT>
__device__ void store_tile(const nmlp_cuda_mlp_rows32_program &prog, const nmlp_cuda_mlp_rows32_phase &ph,
                           const block_tile &p, const float *sums, uint32_t set) {
    const int pairs = ph.groups * M16 / 2;
    const int n = prog.s * pairs;
    const int64_t into_set = set * prog.set_bytes;
    char *out = static_cast<char *>(ph.out) + (ph.last ? 0 : into_set);
    const int64_t factor_floats = 2 * (int64_t)n;
    const int64_t split_floats = factor_floats * ph.n_factors;
    float *parts = ph.n_splits > 1 ? reinterpret_cast<float *>(static_cast<char *>(ph.parts) + into_set) +
                                         p.number * ph.n_splits * split_floats
                                   : nullptr;
    for (int i = threadIdx.x; i < n; i += WARPS * 32) {
        const int token = i * ph.pairs_inverse >> 16;
        const int row = (i - token * pairs) * 2;
        const result r = sum_of_warps<NT>(sums, ph, token, row);
        if (ph.n_splits == 1) {
            put_result(ph, out, token, p.row + row, r);
        } else {
            float *to = parts + p.split * split_floats + 2 * (int64_t)i;
            put_floats(to, r.y[0]);
            if (ph.n_factors == 2) put_floats(to + factor_floats, r.y[1]);
        }
    }
    if (ph.n_splits == 1) return;
    const int begin = p.split * ph.split_pairs;
    const int end = min(n, begin + ph.split_pairs);
    for (int i = begin + threadIdx.x; i < end; i += WARPS * 32) {
        const int token = i * ph.pairs_inverse >> 16;
        result r;
        r.y[0] = poll_and_sum(parts + 2 * (int64_t)i, split_floats, ph.n_splits);
        r.y[1] = ph.n_factors == 2 ? poll_and_sum(parts + factor_floats + 2 * (int64_t)i, split_floats, ph.n_splits)
                                   : make_float2(0, 0);
        put_result(ph, out, token, p.row + (i - token * pairs) * 2, r);
    }
}

} // namespace

#endif
