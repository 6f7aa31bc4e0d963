/* One token's attention over the cache, cut into (kv head, run of keys) units. Every unit asks for its keys and values first, then for the queries it needs,
 * which it normalises and rotates itself; the unit with the newest key takes that from the same phase, and writes it and its value to the cache. */
#ifndef NMLP_CUDA_STREAM_ATTENTION_CUH
#define NMLP_CUDA_STREAM_ATTENTION_CUH

#include "cuda/stream_input.cuh"

enum { HEADS_AT_ONCE = 4, KEYS_AT_ONCE = 4, ANGLES_PER_LANE = 4 };
static_assert(ANGLES_PER_LANE * 32 * 2 >= 256, "heads of up to 256 columns: one warp holds a head's angles");

/* floats of shared memory one unit needs: queries, the newest key, it and its value in bf16, and every warp's result. */
static inline __host__ __device__ int attention_scratch(int dim) {
    return (HEADS_AT_ONCE + 2) * dim + NMLP_CUDA_CONSUMER_WARPS * HEADS_AT_ONCE * (dim + 2);
}

/* What a lane needs to normalise and rotate its columns d and d + D/2 of a head, d = lane, lane + 32, ... */
struct rotation {
    float cosine[ANGLES_PER_LANE];
    float sine[ANGLES_PER_LANE];
    float weight[ANGLES_PER_LANE][2];
};

/* `norm` may be NULL. */
__device__ __forceinline__ rotation load_rotation(const float *angles, const float *norm, int dim, int lane) {
    rotation r;
    const int half = dim / 2;
#pragma unroll
    for (int i = 0; i < ANGLES_PER_LANE; i++) {
        const int d = lane + 32 * i;
        const bool live = d < half;
        r.cosine[i] = live ? __ldg(angles + d) : 0.0f;
        r.sine[i] = live ? __ldg(angles + half + d) : 0.0f;
        r.weight[i][0] = live && norm ? __ldg(norm + d) : 1.0f;
        r.weight[i][1] = live && norm ? __ldg(norm + half + d) : 1.0f;
    }
    return r;
}

/* One warp: head [D], tagged -> normalised and rotated, in shared memory. */
__device__ void prepare_head(float *out, const word *in, uint32_t tag, const rotation &r, bool normed, float eps, int dim, int lane) {
    const int half = dim / 2;
    float v[ANGLES_PER_LANE][2];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < ANGLES_PER_LANE; i++) {
            const int d = lane + 32 * i;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                word w = make_word(0, tag);
                if (d < half) w = get_word(in + d + j * half);
                there = there && (uint32_t)(w >> 32) == tag;
                v[i][j] = __uint_as_float((uint32_t)w);
            }
        }
    } while (!there);
    float scale = 1.0f;
    if (normed) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < ANGLES_PER_LANE; i++) sum += v[i][0] * v[i][0] + v[i][1] * v[i][1];
        scale = rsqrtf(warp_sum(sum) / (float)dim + eps);
    }
#pragma unroll
    for (int i = 0; i < ANGLES_PER_LANE; i++) {
        const int d = lane + 32 * i;
        if (d >= half) continue;
        const float a = v[i][0] * scale * r.weight[i][0];
        const float b = v[i][1] * scale * r.weight[i][1];
        out[d] = a * r.cosine[i] - b * r.sine[i];
        out[d + half] = b * r.cosine[i] + a * r.sine[i];
    }
    __syncwarp();
}

/* One warp: the newest key and value go to their place in the cache and, as they are there, to `kept` [2][D]. */
__device__ void store_newest(const nmlp_cuda_phase *ph, uint32_t tag, const rotation &r, float *scratch, __nv_bfloat16 *kept, int kv_head,
                             int position, int lane) {
    const int dim = ph->head_dim;
    const word *k = static_cast<const word *>(ph->op[0].x) + (ph->n_heads + kv_head) * dim;
    const word *v = k + ph->n_kv_heads * dim;
    const int64_t at = ((int64_t)kv_head * ph->context + position) * dim;
    prepare_head(scratch, k, tag, r, ph->k_norm != nullptr, ph->eps, dim, lane);
    for (int d = lane * 2; d < dim; d += 64) {
        const float2 value = get_pair(v + d, tag);
        const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(scratch[d], scratch[d + 1]), __floats2bfloat162_rn(value.x, value.y)};
        *reinterpret_cast<__nv_bfloat162 *>(kept + d) = pairs[0];
        *reinterpret_cast<__nv_bfloat162 *>(kept + dim + d) = pairs[1];
        *reinterpret_cast<__nv_bfloat162 *>(static_cast<__nv_bfloat16 *>(ph->k_cache) + at + d) = pairs[0];
        *reinterpret_cast<__nv_bfloat162 *>(static_cast<__nv_bfloat16 *>(ph->v_cache) + at + d) = pairs[1];
    }
}

__device__ __forceinline__ void unpack8(float (&out)[8], uint4 bits) {
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

/* Which keys a lane sees: lanes of a warp stand in groups of `group` (a power of two >= D/8) lanes; each group takes every (32/group)-th key of the warp. */
struct key_walk {
    const __nv_bfloat16 *keys; /* the lane's 8 columns of key 0 */
    const __nv_bfloat16 *values;
    int dim;
    int group;
    int part;  /* of the group's lanes */
    int first; /* the warp's first key; the lane's is `ahead` later */
    int ahead;
    int step; /* to the warp's next */
    int end;
    int newest; /* not in the cache yet */
};

__device__ __forceinline__ key_walk begin_walk(const nmlp_cuda_phase *ph, int kv_head, int first, int end, int newest, int warp, int lane) {
    key_walk w;
    w.dim = ph->head_dim;
    w.group = 1;
    while (w.group * 8 < w.dim) w.group *= 2;
    const int per_warp = 32 / w.group;
    w.part = lane & (w.group - 1);
    const int64_t base = (int64_t)kv_head * ph->context * w.dim + w.part * 8;
    w.keys = static_cast<const __nv_bfloat16 *>(ph->k_cache) + base;
    w.values = static_cast<const __nv_bfloat16 *>(ph->v_cache) + base;
    w.first = first + warp * per_warp;
    w.ahead = lane / w.group;
    w.step = NMLP_CUDA_CONSUMER_WARPS * per_warp;
    w.end = end;
    w.newest = newest;
    return w;
}

/* KEYS_AT_ONCE keys of a lane with their values, all asked for at once. */
struct key_batch {
    uint4 k[KEYS_AT_ONCE];
    uint4 v[KEYS_AT_ONCE];
};

/* From the warp's key t on; all but the newest. */
__device__ __forceinline__ void load_keys(key_batch &b, const key_walk &w, int t) {
#pragma unroll
    for (int i = 0; i < KEYS_AT_ONCE; i++) {
        const int at = t + i * w.step + w.ahead;
        const bool wanted = w.part * 8 < w.dim && at < w.end && at != w.newest;
        b.k[i] = b.v[i] = make_uint4(0, 0, 0, 0);
        if (wanted) {
            b.k[i] = __ldcg(reinterpret_cast<const uint4 *>(w.keys + (int64_t)at * w.dim));
            b.v[i] = __ldcg(reinterpret_cast<const uint4 *>(w.values + (int64_t)at * w.dim));
        }
    }
}

__device__ __forceinline__ void take_newest(key_batch &b, const key_walk &w, int t, const __nv_bfloat16 *kept) {
#pragma unroll
    for (int i = 0; i < KEYS_AT_ONCE; i++) {
        if (t + i * w.step + w.ahead != w.newest || w.newest >= w.end || w.part * 8 >= w.dim) continue;
        b.k[i] = *reinterpret_cast<const uint4 *>(kept + w.part * 8);
        b.v[i] = *reinterpret_cast<const uint4 *>(kept + w.dim + w.part * 8);
    }
}

/* Takes one batch into the running softmax of every query; `queries` [HEADS_AT_ONCE][D], in shared memory. */
__device__ __forceinline__ void add_keys(running &r, const key_batch &b, const key_walk &w, int t, const float *queries, float scale) {
    float dot[KEYS_AT_ONCE][HEADS_AT_ONCE];
#pragma unroll
    for (int h = 0; h < HEADS_AT_ONCE; h++) {
        float q[8];
#pragma unroll
        for (int j = 0; j < 8; j++) q[j] = w.part * 8 < w.dim ? queries[h * w.dim + w.part * 8 + j] * scale : 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS_AT_ONCE; i++) {
            float k[8];
            unpack8(k, b.k[i]);
            dot[i][h] = 0;
#pragma unroll
            for (int j = 0; j < 8; j++) dot[i][h] += q[j] * k[j];
        }
    }
    for (int d = 1; d < w.group; d <<= 1)
#pragma unroll
        for (int i = 0; i < KEYS_AT_ONCE; i++)
#pragma unroll
            for (int h = 0; h < HEADS_AT_ONCE; h++) dot[i][h] += __shfl_xor_sync(0xffffffffu, dot[i][h], d);
#pragma unroll
    for (int i = 0; i < KEYS_AT_ONCE; i++)
#pragma unroll
        for (int h = 0; h < HEADS_AT_ONCE; h++)
            if (t + i * w.step + w.ahead >= w.end) dot[i][h] = -INFINITY;
#pragma unroll
    for (int h = 0; h < HEADS_AT_ONCE; h++) {
        float top = r.top[h];
#pragma unroll
        for (int i = 0; i < KEYS_AT_ONCE; i++) top = fmaxf(top, dot[i][h]);
        const float from = top == -INFINITY ? 0.0f : top; /* nothing yet: all weights below are exp(-infinity) */
        const float before = __expf(r.top[h] - from);
        r.top[h] = top;
        r.sum[h] *= before;
#pragma unroll
        for (int j = 0; j < 8; j++) r.out[h][j] *= before;
#pragma unroll
        for (int i = 0; i < KEYS_AT_ONCE; i++) {
            dot[i][h] = __expf(dot[i][h] - from);
            r.sum[h] += dot[i][h];
        }
    }
#pragma unroll
    for (int i = 0; i < KEYS_AT_ONCE; i++) {
        float v[8];
        unpack8(v, b.v[i]);
#pragma unroll
        for (int h = 0; h < HEADS_AT_ONCE; h++)
#pragma unroll
            for (int j = 0; j < 8; j++) r.out[h][j] += dot[i][h] * v[j];
    }
}

__device__ __forceinline__ void merge(float &top, float &sum, float (&out)[8], float top2, float sum2, const float (&out2)[8]) {
    const float m = fmaxf(top, top2);
    const float from = m == -INFINITY ? 0.0f : m;
    const float a = __expf(top - from);
    const float b = __expf(top2 - from);
    top = m;
    sum = sum * a + sum2 * b;
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = out[i] * a + out2[i] * b;
}

/* Groups of the warp, then warps of the block, in fixed order; `scratch` [warps][HEADS_AT_ONCE][D + 2]. */
__device__ void write_unit(running &r, const nmlp_cuda_phase *ph, uint32_t tag, float *scratch, int first_head, int n_heads, int chunk,
                           int group, int warp, int lane) {
    const int dim = ph->head_dim;
    const int row = dim + 2;
    for (int d = group; d < 32; d <<= 1) {
#pragma unroll
        for (int h = 0; h < HEADS_AT_ONCE; h++) {
            float other[8];
            const float top = __shfl_xor_sync(0xffffffffu, r.top[h], d);
            const float sum = __shfl_xor_sync(0xffffffffu, r.sum[h], d);
#pragma unroll
            for (int i = 0; i < 8; i++) other[i] = __shfl_xor_sync(0xffffffffu, r.out[h][i], d);
            merge(r.top[h], r.sum[h], r.out[h], top, sum, other);
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS_AT_ONCE; h++) {
        float *mine = scratch + (warp * HEADS_AT_ONCE + h) * row;
        if (lane < group && lane * 8 < dim)
#pragma unroll
            for (int i = 0; i < 8; i++) mine[2 + lane * 8 + i] = r.out[h][i];
        if (lane == 0) {
            mine[0] = r.top[h];
            mine[1] = r.sum[h];
        }
    }
    consumer_sync();
    for (int at = threadIdx.x; at < n_heads * dim; at += CONSUMERS) {
        const int h = at / dim;
        const int d = at - h * dim;
        const float *all = scratch + h * row;
        float tops[NMLP_CUDA_CONSUMER_WARPS];
        float top = -INFINITY;
        float sum = 0;
        float v = 0;
#pragma unroll
        for (int w = 0; w < NMLP_CUDA_CONSUMER_WARPS; w++) {
            tops[w] = all[w * HEADS_AT_ONCE * row];
            top = fmaxf(top, tops[w]);
        }
#pragma unroll
        for (int w = 0; w < NMLP_CUDA_CONSUMER_WARPS; w++) {
            const float weight = __expf(tops[w] - top);
            sum += all[w * HEADS_AT_ONCE * row + 1] * weight;
            v += all[w * HEADS_AT_ONCE * row + 2 + d] * weight;
        }
        put_word(static_cast<word *>(ph->out) + chunk * ph->out_part_stride + (first_head + h) * dim + d, __float_as_uint(v), tag);
        if (d == 0)
            put_words(static_cast<word *>(ph->softmax) + 2 * (chunk * ph->n_heads + first_head + h), make_word(__float_as_uint(top), tag),
                      make_word(__float_as_uint(sum), tag));
    }
    consumer_sync();
}

/* `scratch`: the block's input space, f32. Keys, values and angles are asked for before the queries, which are what everything waits for. */
__device__ void run_attention(const nmlp_cuda_phase *ph, uint32_t in_tag, uint32_t out_tag, float *scratch, int position) {
    const int warp = threadIdx.x >> 5;
    const int lane = threadIdx.x & 31;
    const int dim = ph->head_dim;
    const int n_keys = position + 1;
    const int per_chunk = keys_per_chunk(n_keys);
    const int n_chunks = (n_keys + per_chunk - 1) / per_chunk;
    const int heads_per_kv = ph->n_heads / ph->n_kv_heads;
    float *queries = scratch;
    float *newest = scratch + HEADS_AT_ONCE * dim;
    __nv_bfloat16 *kept = reinterpret_cast<__nv_bfloat16 *>(newest + dim);
    float *merged = newest + 2 * dim;
    const bool for_key = warp == NMLP_CUDA_CONSUMER_WARPS - 1;
    for (int unit = blockIdx.x; unit < ph->n_kv_heads * n_chunks; unit += gridDim.x) {
        const int kv_head = unit % ph->n_kv_heads;
        const int chunk = unit / ph->n_kv_heads;
        const int end = min(n_keys, (chunk + 1) * per_chunk);
        const key_walk walk = begin_walk(ph, kv_head, chunk * per_chunk, end, position, warp, lane);
        for (int h0 = 0; h0 < heads_per_kv; h0 += HEADS_AT_ONCE) {
            const int n_here = min(HEADS_AT_ONCE, heads_per_kv - h0);
            const int head = kv_head * heads_per_kv + h0;
            key_batch batch;
            int t = walk.first;
            load_keys(batch, walk, t);
            if (warp < HEADS_AT_ONCE || (for_key && end == n_keys && h0 == 0)) {
                const rotation r = load_rotation(ph->rope + (int64_t)position * dim, for_key ? ph->k_norm : ph->q_norm, dim, lane);
                if (for_key)
                    store_newest(ph, in_tag, r, newest, kept, kv_head, position, lane);
                else
                    prepare_head(queries + warp * dim, static_cast<const word *>(ph->op[0].x) + (head + min(warp, n_here - 1)) * dim, in_tag,
                                 r, ph->q_norm != nullptr, ph->eps, dim, lane);
            }
            consumer_sync();
            running r;
#pragma unroll
            for (int h = 0; h < HEADS_AT_ONCE; h++) {
                r.top[h] = -INFINITY;
                r.sum[h] = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) r.out[h][i] = 0;
            }
            while (t < end) {
                take_newest(batch, walk, t, kept);
                add_keys(r, batch, walk, t, queries, ph->scale);
                t += KEYS_AT_ONCE * walk.step;
                if (t < end) load_keys(batch, walk, t);
            }
            write_unit(r, ph, out_tag, merged, head, n_here, chunk, walk.group, warp, lane);
        }
    }
}

#endif
