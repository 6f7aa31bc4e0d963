/* The arithmetic of decode_attention_paged.cu. A group of LANES lanes of a warp has a key at a time, COLS columns a
 * lane, and keeps a running softmax of each of its query heads. Every rounding is spelled out: kernels for other
 * numbers of heads give the same bits. */
#ifndef NMLP_CUDA_BATCH_DECODE_ATTENTION_SOFTMAX_CUH
#define NMLP_CUDA_BATCH_DECODE_ATTENTION_SOFTMAX_CUH

#include <cstdint>

#include <cuda_runtime.h>

namespace {

enum { COLS = 8, UNROLL = 2 /* keys that a group adds at once */ };

template <int HEADS> struct softmax_state {
    float top[HEADS];
    float sum[HEADS];
    float out[HEADS][COLS];
};

template <int HEADS> __device__ __forceinline__ void clear(softmax_state<HEADS> &s) {
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        s.top[h] = -INFINITY;
        s.sum[h] = 0;
#pragma unroll
        for (int i = 0; i < COLS; i++) s.out[h][i] = 0;
    }
}

__device__ __forceinline__ void unpack(float (&v)[COLS], const uint4 &bits) {
    const uint32_t w[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(w[i] << 16);
        v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

/* What scores are measured from: the largest, or any number where all are -infinity, so that their weights are 0. No
 * branch: warps would part at every weight. */
__device__ __forceinline__ float zero_of(float top) { return top == -INFINITY ? 0.0f : top; }

__device__ __forceinline__ float weight_of(float score, float zero) { return __expf(score - zero); }

/* Two sums, each times its weight. */
__device__ __forceinline__ float blend(float a, float weight_a, float b, float weight_b) {
    return __fmaf_rn(a, weight_a, __fmul_rn(b, weight_b));
}

/* What another group of the warp has is added to `s`. */
template <int HEADS> __device__ __forceinline__ void merge_group(softmax_state<HEADS> &s, int distance) {
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        const float other = __shfl_xor_sync(0xffffffffu, s.top[h], distance);
        const float top = fmaxf(s.top[h], other);
        const float mine = weight_of(s.top[h], zero_of(top));
        const float theirs = weight_of(other, zero_of(top));
        s.sum[h] = blend(s.sum[h], mine, __shfl_xor_sync(0xffffffffu, s.sum[h], distance), theirs);
#pragma unroll
        for (int i = 0; i < COLS; i++)
            s.out[h][i] = blend(s.out[h][i], mine, __shfl_xor_sync(0xffffffffu, s.out[h][i], distance), theirs);
        s.top[h] = top;
    }
}

/* Of UNROLL keys of this lane's group; those that are not there are -infinity. */
template <int LANES, int HEADS>
__device__ __forceinline__ void score_keys(float (&score)[HEADS][UNROLL], const float (&q)[HEADS][COLS],
                                           const uint4 (&k)[UNROLL], const bool (&live)[UNROLL]) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        float key[COLS];
        unpack(key, k[u]);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float dot = 0;
#pragma unroll
            for (int i = 0; i < COLS; i++) dot = __fmaf_rn(q[h][i], key[i], dot);
#pragma unroll
            for (int d = LANES / 2; d; d >>= 1) dot += __shfl_xor_sync(0xffffffffu, dot, d);
            score[h][u] = live[u] ? dot : -INFINITY;
        }
    }
}

/* Those keys' values, in order. */
template <int HEADS>
__device__ __forceinline__ void add_values(softmax_state<HEADS> &s, float (&score)[HEADS][UNROLL],
                                           const uint4 (&v)[UNROLL]) {
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float top = s.top[h];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) top = fmaxf(top, score[h][u]);
        const float zero = zero_of(top);
        const float before = weight_of(s.top[h], zero);
        s.sum[h] = __fmul_rn(s.sum[h], before);
#pragma unroll
        for (int i = 0; i < COLS; i++) s.out[h][i] = __fmul_rn(s.out[h][i], before);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            score[h][u] = weight_of(score[h][u], zero);
            s.sum[h] = __fadd_rn(s.sum[h], score[h][u]);
        }
        s.top[h] = top;
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        float value[COLS];
        unpack(value, v[u]);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
#pragma unroll
            for (int i = 0; i < COLS; i++) s.out[h][i] = __fmaf_rn(score[h][u], value[i], s.out[h][i]);
    }
}

} // namespace

#endif
