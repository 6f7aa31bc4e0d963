/* Bias, norm and rotation of heads. A head of one row lies in the registers of a warp: lane l holds the pairs of
 * columns (d, d + D/2) that are rotated together, for d = l, l + 32 and so on: N of them, for heads of up to 64 N
 * columns; those past the head are zero. Roundings are spelled out, so every kernel that has this gives the same bits.
 */
#ifndef NMLP_CUDA_ROPE_CUH
#define NMLP_CUDA_ROPE_CUH

#include <cuda_bf16.h>

/* Of a row's angles: cos in x, sin in y. */
template <int N> struct head_pairs {
    float x[N];
    float y[N];
};

template <int N> __device__ __forceinline__ void load_pairs(head_pairs<N> &p, const float *in, int half) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int d = (int)(threadIdx.x & 31) + i * 32;
        p.x[i] = d < half ? in[d] : 0.0f;
        p.y[i] = d < half ? in[d + half] : 0.0f;
    }
}

template <int N> __device__ __forceinline__ void add_pairs(head_pairs<N> &p, const head_pairs<N> &bias) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        p.x[i] += bias.x[i];
        p.y[i] += bias.y[i];
    }
}

/* p = p / rms(p) * weight. All lanes of the warp. */
template <int N>
__device__ __forceinline__ void norm_pairs(head_pairs<N> &p, const head_pairs<N> &weight, float eps, int half) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) sum += __fmaf_rn(p.x[i], p.x[i], __fmul_rn(p.y[i], p.y[i]));
#pragma unroll
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    const float scale = rsqrtf(sum / (float)(2 * half) + eps);
#pragma unroll
    for (int i = 0; i < N; i++) {
        p.x[i] *= scale * weight.x[i];
        p.y[i] *= scale * weight.y[i];
    }
}

template <int N>
__device__ __forceinline__ void rotate_pairs(head_pairs<N> &p, const head_pairs<N> &angles, float after) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float x = p.x[i];
        const float y = p.y[i];
        p.x[i] = __fmul_rn(__fmaf_rn(x, angles.x[i], -__fmul_rn(y, angles.y[i])), after);
        p.y[i] = __fmul_rn(__fmaf_rn(y, angles.x[i], __fmul_rn(x, angles.y[i])), after);
    }
}

template <int N> __device__ __forceinline__ void store_pairs(__nv_bfloat16 *to, const head_pairs<N> &p, int half) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int d = (int)(threadIdx.x & 31) + i * 32;
        if (d >= half) continue;
        to[d] = __float2bfloat16(p.x[i]);
        to[d + half] = __float2bfloat16(p.y[i]);
    }
}

#endif
