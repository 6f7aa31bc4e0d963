/* Bias, norm and rotation of heads. A head of one row lies in the registers of a warp: lane l holds the pairs of
 * columns (d, d + D/2) that are rotated together, for d = l, l + 32 and so on. */
#ifndef NMLP_CUDA_ROPE_CUH
#define NMLP_CUDA_ROPE_CUH

#include <cuda_bf16.h>

enum { ROPE_PAIRS = 4 }; /* of a lane: heads of up to 256 columns */

struct head_pairs {
    float x[ROPE_PAIRS];
    float y[ROPE_PAIRS];
};

/* What a warp knows of a row: cos in x, sin in y, at the row's position. */
typedef head_pairs row_angles;

__device__ __forceinline__ void load_pairs(head_pairs &p, const float *in, int half) {
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        const int d = (int)(threadIdx.x & 31) + i * 32;
        p.x[i] = d < half ? in[d] : 0.0f;
        p.y[i] = d < half ? in[d + half] : 0.0f;
    }
}

__device__ __forceinline__ void add_pairs(head_pairs &p, const float *bias, int half) {
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        const int d = (int)(threadIdx.x & 31) + i * 32;
        if (d >= half) continue;
        p.x[i] += bias[d];
        p.y[i] += bias[d + half];
    }
}

/* p = p / rms(p) * weight. All lanes of the warp. */
__device__ __forceinline__ void norm_pairs(head_pairs &p, const float *weight, float eps, int half) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) sum += p.x[i] * p.x[i] + p.y[i] * p.y[i];
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    const float scale = rsqrtf(sum / (float)(2 * half) + eps);
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        const int d = (int)(threadIdx.x & 31) + i * 32;
        if (d >= half) continue;
        p.x[i] *= scale * weight[d];
        p.y[i] *= scale * weight[d + half];
    }
}

__device__ __forceinline__ void rotate_pairs(head_pairs &p, const row_angles &a, float after) {
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        const float x = p.x[i];
        p.x[i] = (x * a.x[i] - p.y[i] * a.y[i]) * after;
        p.y[i] = (p.y[i] * a.x[i] + x * a.y[i]) * after;
    }
}

__device__ __forceinline__ void store_pairs(__nv_bfloat16 *to, const head_pairs &p, int half) {
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        const int d = (int)(threadIdx.x & 31) + i * 32;
        if (d >= half) continue;
        to[d] = __float2bfloat16(p.x[i]);
        to[d + half] = __float2bfloat16(p.y[i]);
    }
}

#endif
