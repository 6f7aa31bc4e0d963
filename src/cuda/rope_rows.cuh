/* Bias, norm and rotation of the heads of many rows, on their way to queries and caches. A group of lanes takes a head,
 * four neighbouring pairs of columns (d, d + D/2) each, so that loads are 16 bytes a lane. Steps of few rows take
 * rope.cuh, where a whole warp has a head. */
#ifndef NMLP_CUDA_ROPE_ROWS_CUH
#define NMLP_CUDA_ROPE_ROWS_CUH

#include <cstdint>
#include <cuda_bf16.h>

enum {
    ROPE_ROW_THREADS = 128,
    ROPE_ROW_HEADS = 3, /* of a thread, all of whose loads are in flight at once */
    ROPE_QUAD = 4
};

/* One row: what it is rotated by, and where its heads go. Cached heads lie `head_stride` elements apart. */
struct rope_row {
    const float *qkv;
    const float *angles; /* cos, then sin, of D/2 columns */
    __nv_bfloat16 *q;
    __nv_bfloat16 *k;
    __nv_bfloat16 *v;
    int64_t head_stride;
};

/* Lanes that share a head: a power of two. */
__host__ __device__ __forceinline__ int rope_lanes(int head_dim) {
    int lanes = 1;
    while (lanes * ROPE_QUAD * 2 < head_dim) lanes *= 2;
    return lanes;
}

inline dim3 rope_grid(int rows, int n_all_heads, int head_dim) {
    const int per_block = ROPE_ROW_THREADS / rope_lanes(head_dim) * ROPE_ROW_HEADS;
    return dim3((unsigned)rows, (unsigned)((n_all_heads + per_block - 1) / per_block));
}

struct quad_pair {
    float4 x;
    float4 y;
};

__device__ __forceinline__ quad_pair load_quads(const float *from, int col, int half) {
    return {*reinterpret_cast<const float4 *>(from + col), *reinterpret_cast<const float4 *>(from + half + col)};
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float4 multiply(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

__device__ __forceinline__ float4 multiply(float4 a, float b) {
    return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}

__device__ __forceinline__ float squares(float4 a) { return a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w; }

/* p / rms(p) * weight. All lanes of a head's group; those past its columns hold zeros. */
__device__ __forceinline__ void norm_quads(quad_pair &p, const quad_pair &weight, float eps, int dim, int lanes) {
    float sum = squares(p.x) + squares(p.y);
    for (int d = lanes / 2; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    const float scale = rsqrtf(sum / (float)dim + eps);
    p.x = multiply(p.x, multiply(weight.x, scale));
    p.y = multiply(p.y, multiply(weight.y, scale));
}

__device__ __forceinline__ void rotate_quads(quad_pair &p, const quad_pair &angle, float after) {
    const quad_pair old = p;
    p.x = multiply(add(multiply(old.x, angle.x), multiply(multiply(old.y, angle.y), -1.0f)), after);
    p.y = multiply(add(multiply(old.y, angle.x), multiply(old.x, angle.y)), after);
}

__device__ __forceinline__ void store_quad(__nv_bfloat16 *to, float4 v) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y);
    const __nv_bfloat162 high = __floats2bfloat162_rn(v.z, v.w);
    *reinterpret_cast<uint2 *>(to) =
        make_uint2(*reinterpret_cast<const uint32_t *>(&low), *reinterpret_cast<const uint32_t *>(&high));
}

/* A thread's heads of a row, for blockIdx.y of rope_grid. `a` is nmlp_cuda_attention or nmlp_cuda_paged_attention. */
template <class Attention> __device__ __forceinline__ void rope_heads(const Attention &a, const rope_row &row) {
    const int dim = a.head_dim;
    const int half = dim / 2;
    const int lanes = rope_lanes(dim);
    const int groups = ROPE_ROW_THREADS / lanes;
    const int col = (int)(threadIdx.x & (lanes - 1)) * ROPE_QUAD;
    const int n_all = a.n_heads + 2 * a.n_kv_heads;
    const int first = (int)blockIdx.y * groups * ROPE_ROW_HEADS + (int)threadIdx.x / lanes;
    const bool live = col < half;
    quad_pair p[ROPE_ROW_HEADS] = {};
    quad_pair angle = {};
#pragma unroll
    for (int j = 0; j < ROPE_ROW_HEADS; j++) {
        const int head = first + j * groups;
        if (live && head < n_all) p[j] = load_quads(row.qkv + head * dim, col, half);
    }
    if (live) angle = load_quads(row.angles, col, half);
#pragma unroll
    for (int j = 0; j < ROPE_ROW_HEADS; j++) {
        const int head = first + j * groups;
        const bool is_q = head < a.n_heads;
        const bool is_v = head >= a.n_heads + a.n_kv_heads;
        const bool there = live && head < n_all;
        if (a.bias && there) {
            const quad_pair bias = load_quads(a.bias + head * dim, col, half);
            p[j].x = add(p[j].x, bias.x);
            p[j].y = add(p[j].y, bias.y);
        }
        if (a.q_norm) { /* and k_norm: lanes of all heads take part in the sums */
            quad_pair weight = {};
            quad_pair normed = p[j];
            if (live) weight = load_quads(is_q ? a.q_norm : a.k_norm, col, half);
            norm_quads(normed, weight, a.eps, dim, lanes);
            if (!is_v) p[j] = normed;
        }
        if (!there) continue;
        if (!is_v) rotate_quads(p[j], angle, is_q ? a.scale : 1.0f);
        __nv_bfloat16 *to =
            is_q ? row.q + head * dim : (is_v ? row.v : row.k) + (head - a.n_heads) % a.n_kv_heads * row.head_stride;
        store_quad(to + col, p[j].x);
        store_quad(to + half + col, p[j].y);
    }
}

#endif
