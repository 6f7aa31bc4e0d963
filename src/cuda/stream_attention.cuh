/* One token's attention over the cache, cut into (kv head, run of keys) units. Every unit normalises and rotates the queries it needs
 * itself; the unit with the newest key also writes it and its value to the cache. */
#ifndef NMLP_CUDA_STREAM_ATTENTION_CUH
#define NMLP_CUDA_STREAM_ATTENTION_CUH

#include "cuda/stream_input.cuh"

enum { HEADS_AT_ONCE = 4 };

/* floats of shared memory one unit needs: queries, the newest key, and every warp's result. */
static inline __host__ __device__ int attention_scratch(int dim) {
    return (HEADS_AT_ONCE + 1) * dim + NMLP_CUDA_CONSUMER_WARPS * HEADS_AT_ONCE * (dim + 2);
}

/* One warp: head [D], tagged -> normalised (weight may be NULL) and rotated, in shared memory. */
__device__ void prepare_head(float *out, const word *in, uint32_t tag, const float *norm, float eps, const float *angles, int dim,
                             int lane) {
    float sum = 0;
    for (int d = lane * 2; d < dim; d += 64) {
        float2 v = get_pair(in + d, tag);
        out[d] = v.x;
        out[d + 1] = v.y;
        sum += v.x * v.x + v.y * v.y;
    }
    float scale = norm ? rsqrtf(warp_sum(sum) / (float)dim + eps) : 1.0f;
    __syncwarp();
    int half = dim / 2;
    for (int d = lane; d < half; d += 32) {
        float a = out[d] * scale * (norm ? norm[d] : 1.0f);
        float b = out[d + half] * scale * (norm ? norm[d + half] : 1.0f);
        float c = angles[d];
        float s = angles[d + half];
        out[d] = a * c - b * s;
        out[d + half] = b * c + a * s;
    }
    __syncwarp();
}

/* The newest key and value go to their place in the cache. */
__device__ void store_newest(const nmlp_cuda_phase *ph, uint32_t tag, float *scratch, int kv_head, int position, int lane) {
    int dim = ph->head_dim;
    const word *k = static_cast<const word *>(ph->op[0].x) + (ph->n_heads + kv_head) * dim;
    const word *v = k + ph->n_kv_heads * dim;
    int64_t at = ((int64_t)kv_head * ph->context + position) * dim;
    prepare_head(scratch, k, tag, ph->k_norm, ph->eps, ph->rope + (int64_t)position * dim, dim, lane);
    for (int d = lane * 2; d < dim; d += 64) {
        float2 value = get_pair(v + d, tag);
        *reinterpret_cast<__nv_bfloat162 *>(static_cast<__nv_bfloat16 *>(ph->k_cache) + at + d) =
            __floats2bfloat162_rn(scratch[d], scratch[d + 1]);
        *reinterpret_cast<__nv_bfloat162 *>(static_cast<__nv_bfloat16 *>(ph->v_cache) + at + d) = __floats2bfloat162_rn(value.x, value.y);
    }
}

__device__ __forceinline__ void unpack8(float *out, uint4 bits) {
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

/* Running softmax of up to HEADS_AT_ONCE queries over the same keys; a lane holds 8 of D columns. */
struct running {
    float top[HEADS_AT_ONCE];
    float sum[HEADS_AT_ONCE];
    float out[HEADS_AT_ONCE][8];
};

__device__ __forceinline__ void merge(float &top, float &sum, float *out, float top2, float sum2, const float *out2) {
    float m = fmaxf(top, top2);
    float a = top == -INFINITY ? 0.0f : __expf(top - m);
    float b = top2 == -INFINITY ? 0.0f : __expf(top2 - m);
    top = m;
    sum = sum * a + sum2 * b;
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = out[i] * a + out2[i] * b;
}

/* Lanes of a warp stand in groups of `group` (a power of two >= D/8) lanes; each group takes every (32/group)-th key of the warp. */
__device__ void walk_keys(running &r, const nmlp_cuda_phase *ph, const float *queries, int kv_head, int first, int end,
                          int group, int warp, int lane) {
    int dim = ph->head_dim;
    int per_warp = 32 / group;
    int part = lane & (group - 1);
    bool holds = part * 8 < dim;
    int64_t base = (int64_t)kv_head * ph->context * dim + part * 8;
    const __nv_bfloat16 *keys = static_cast<const __nv_bfloat16 *>(ph->k_cache) + base;
    const __nv_bfloat16 *values = static_cast<const __nv_bfloat16 *>(ph->v_cache) + base;
    float q[HEADS_AT_ONCE][8];
    for (int h = 0; h < HEADS_AT_ONCE; h++)
        for (int i = 0; i < 8; i++) q[h][i] = holds ? queries[h * dim + part * 8 + i] * ph->scale : 0.0f;
    int step = NMLP_CUDA_CONSUMER_WARPS * per_warp;
    for (int t0 = first + warp * per_warp; t0 < end; t0 += step) {
        int t = t0 + lane / group;
        bool live = t < end;
        uint4 kb = make_uint4(0, 0, 0, 0);
        uint4 vb = kb;
        if (live && holds) {
            kb = __ldcg(reinterpret_cast<const uint4 *>(keys + (int64_t)t * dim));
            vb = __ldcg(reinterpret_cast<const uint4 *>(values + (int64_t)t * dim));
        }
        float k[8];
        float v[8];
        unpack8(k, kb);
        unpack8(v, vb);
#pragma unroll
        for (int h = 0; h < HEADS_AT_ONCE; h++) {
            float dot = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) dot += q[h][i] * k[i];
            for (int d = 1; d < group; d <<= 1) dot += __shfl_xor_sync(0xffffffffu, dot, d);
            merge(r.top[h], r.sum[h], r.out[h], live ? dot : -INFINITY, live ? 1.0f : 0.0f, v);
        }
    }
}

/* Groups of the warp, then warps of the block, in fixed order; `scratch` [warps][HEADS_AT_ONCE][D + 2]. */
__device__ void write_unit(running &r, const nmlp_cuda_phase *ph, uint32_t tag, float *scratch, int first_head, int n_heads, int chunk,
                           int group, int warp, int lane) {
    int dim = ph->head_dim;
    int row = dim + 2;
    for (int h = 0; h < HEADS_AT_ONCE; h++) {
        for (int d = group; d < 32; d <<= 1) {
            float other[8];
            float top = __shfl_xor_sync(0xffffffffu, r.top[h], d);
            float sum = __shfl_xor_sync(0xffffffffu, r.sum[h], d);
            for (int i = 0; i < 8; i++) other[i] = __shfl_xor_sync(0xffffffffu, r.out[h][i], d);
            merge(r.top[h], r.sum[h], r.out[h], top, sum, other);
        }
        float *mine = scratch + (warp * HEADS_AT_ONCE + h) * row;
        if (lane < group && lane * 8 < dim)
            for (int i = 0; i < 8; i++) mine[2 + lane * 8 + i] = r.out[h][i];
        if (lane == 0) {
            mine[0] = r.top[h];
            mine[1] = r.sum[h];
        }
    }
    consumer_sync();
    for (int h = 0; h < n_heads; h++) {
        const float *all = scratch + h * row;
        float top = -INFINITY;
        float sum = 0;
        for (int w = 0; w < NMLP_CUDA_CONSUMER_WARPS; w++) top = fmaxf(top, all[w * HEADS_AT_ONCE * row]);
        for (int w = 0; w < NMLP_CUDA_CONSUMER_WARPS; w++)
            sum += all[w * HEADS_AT_ONCE * row + 1] * __expf(all[w * HEADS_AT_ONCE * row] - top);
        for (int d = threadIdx.x; d < dim; d += CONSUMERS) {
            float v = 0;
            for (int w = 0; w < NMLP_CUDA_CONSUMER_WARPS; w++)
                v += all[w * HEADS_AT_ONCE * row + 2 + d] * __expf(all[w * HEADS_AT_ONCE * row] - top);
            put_word(static_cast<word *>(ph->out) + chunk * ph->out_part_stride + (first_head + h) * dim + d, __float_as_uint(v), tag);
        }
        if (threadIdx.x == 0)
            put_words(static_cast<word *>(ph->softmax) + 2 * (chunk * ph->n_heads + first_head + h), make_word(__float_as_uint(top), tag),
                      make_word(__float_as_uint(sum), tag));
    }
    consumer_sync();
}

/* `scratch`: the block's input space, f32. */
__device__ void run_attention(const nmlp_cuda_phase *ph, uint32_t in_tag, uint32_t out_tag, float *scratch, int position) {
    int warp = threadIdx.x >> 5;
    int lane = threadIdx.x & 31;
    int dim = ph->head_dim;
    int n_keys = position + 1;
    int per_chunk = keys_per_chunk(n_keys);
    int n_chunks = (n_keys + per_chunk - 1) / per_chunk;
    int group = 1;
    while (group * 8 < dim) group *= 2;
    int heads_per_kv = ph->n_heads / ph->n_kv_heads;
    float *queries = scratch;
    float *merged = scratch + (HEADS_AT_ONCE + 1) * dim;
    for (int unit = blockIdx.x; unit < ph->n_kv_heads * n_chunks; unit += gridDim.x) {
        int kv_head = unit % ph->n_kv_heads;
        int chunk = unit / ph->n_kv_heads;
        int first = chunk * per_chunk;
        int end = min(n_keys, first + per_chunk);
        if (warp == NMLP_CUDA_CONSUMER_WARPS - 1 && end == n_keys)
            store_newest(ph, in_tag, queries + HEADS_AT_ONCE * dim, kv_head, position, lane);
        for (int h0 = 0; h0 < heads_per_kv; h0 += HEADS_AT_ONCE) {
            int n_here = min(HEADS_AT_ONCE, heads_per_kv - h0);
            int head = kv_head * heads_per_kv + h0;
            if (warp < HEADS_AT_ONCE)
                prepare_head(queries + warp * dim, static_cast<const word *>(ph->op[0].x) + (head + min(warp, n_here - 1)) * dim, in_tag, ph->q_norm,
                             ph->eps, ph->rope + (int64_t)position * dim, dim, lane);
            consumer_sync();
            running r;
            for (int h = 0; h < HEADS_AT_ONCE; h++) {
                r.top[h] = -INFINITY;
                r.sum[h] = 0;
                for (int i = 0; i < 8; i++) r.out[h][i] = 0;
            }
            walk_keys(r, ph, queries, kv_head, first, end, group, warp, lane);
            write_unit(r, ph, out_tag, merged, head, n_here, chunk, group, warp, lane);
        }
    }
}

#endif
