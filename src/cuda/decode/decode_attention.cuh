/* One token's attention over the cache, cut into (kv head, run of keys) units. A warp takes 16 keys at a time on the
 * tensor cores: scores are Q K^T, results P V, where Q and P are rows of two bf16 numbers each, the high halves of four
 * heads in rows 0 to 3 and the low halves in rows 4 to 7. Keys, values and angles are loaded before the queries,
 * which are what everything waits for. The unit with the newest key takes that from the same phase, and writes it and
 * its value to the cache. */
#ifndef NMLP_CUDA_DECODE_DECODE_ATTENTION_CUH
#define NMLP_CUDA_DECODE_DECODE_ATTENTION_CUH

#include "cuda/decode/decode_block.cuh"

namespace {

enum {
    HEADS_AT_ONCE = 4,
    KEYS_PER_WARP = NMLP_CUDA_DECODE_KEYS,
    KEYS_AT_ONCE = NMLP_CUDA_DECODE_CONSUMER_WARPS * KEYS_PER_WARP,
    DIMS_PER_BLOCK = 32, /* a lane holds 8 neighbouring columns of 32 */
    QUERY_SKEW = 8       /* elements between rows of queries */
};

/* A block's shared memory during attention. */
struct attention_memory {
    __nv_bfloat16 *queries; /* [2 * HEADS_AT_ONCE][D + QUERY_SKEW], high halves first */
    __nv_bfloat16 *newest;  /* [2][D] key and value */
    float *merged;          /* [warps][HEADS_AT_ONCE][D + 4]: result, largest score, sum */
};

/* In floats. */
inline __host__ __device__ int attention_scratch(int dim) {
    return HEADS_AT_ONCE * (dim + QUERY_SKEW) + dim + NMLP_CUDA_DECODE_CONSUMER_WARPS * HEADS_AT_ONCE * (dim + 4);
}

__device__ __forceinline__ attention_memory attention_places(float *scratch, int dim) {
    float *newest = scratch + HEADS_AT_ONCE * (dim + QUERY_SKEW);
    return {reinterpret_cast<__nv_bfloat16 *>(scratch), reinterpret_cast<__nv_bfloat16 *>(newest), newest + dim};
}

/* A lane's columns d and d + D/2 of a head, d = lane, lane + 32, ... */
template <int DB> struct head_columns {
    float v[(DB + 1) / 2][2];
};

/* What a lane needs to normalise and rotate them. */
template <int DB> struct rotation {
    float cosine[(DB + 1) / 2];
    float sine[(DB + 1) / 2];
    float weight[(DB + 1) / 2][2];
};

/* `norm` may be NULL. */
template <int DB>
__device__ __forceinline__ void load_rotation(rotation<DB> &r, const float *angles, const float *norm, int half,
                                              int lane) {
#pragma unroll
    for (int i = 0; i < (DB + 1) / 2; i++) {
        const int d = min(lane + 32 * i, half - 1);
        r.cosine[i] = __ldg(angles + d);
        r.sine[i] = __ldg(angles + half + d);
        r.weight[i][0] = norm ? __ldg(norm + d) : 1.0f;
        r.weight[i][1] = norm ? __ldg(norm + half + d) : 1.0f;
    }
}

/* One warp: head [D], tagged, normalised and rotated. */
template <int DB>
__device__ __forceinline__ void prepare_head(head_columns<DB> &h, const word *in, uint32_t tag, const rotation<DB> &r,
                                             bool normed, float eps, int half, int lane) {
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < (DB + 1) / 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const word w = get_word(in + min(lane + 32 * i, half - 1) + j * half);
                there = there && (uint32_t)(w >> 32) == tag;
                h.v[i][j] = __uint_as_float((uint32_t)w);
            }
    } while (!there);
    float scale = 1.0f;
    if (normed) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < (DB + 1) / 2; i++)
            if (lane + 32 * i < half) sum += h.v[i][0] * h.v[i][0] + h.v[i][1] * h.v[i][1];
        scale = rsqrtf(warp_sum(sum) / (float)(2 * half) + eps);
    }
#pragma unroll
    for (int i = 0; i < (DB + 1) / 2; i++) {
        const float a = h.v[i][0] * scale * r.weight[i][0];
        const float b = h.v[i][1] * scale * r.weight[i][1];
        h.v[i][0] = a * r.cosine[i] - b * r.sine[i];
        h.v[i][1] = b * r.cosine[i] + a * r.sine[i];
    }
}

/* One warp: a query times `scale`, as two halves. */
template <int DB>
__device__ __forceinline__ void put_query(__nv_bfloat16 *queries, const head_columns<DB> &h, int head, float scale,
                                          int half, int lane) {
    const int pitch = 2 * half + QUERY_SKEW;
#pragma unroll
    for (int i = 0; i < (DB + 1) / 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int d = lane + 32 * i;
            if (d >= half) continue;
            const float v = h.v[i][j] * scale;
            const __nv_bfloat16 high = __float2bfloat16(v);
            queries[head * pitch + d + j * half] = high;
            queries[(HEADS_AT_ONCE + head) * pitch + d + j * half] = __float2bfloat16(v - __bfloat162float(high));
        }
}

/* One warp: the newest key goes to its place in the cache and to shared memory. */
template <int DB>
__device__ __forceinline__ void put_key(__nv_bfloat16 *cache, __nv_bfloat16 *newest, const head_columns<DB> &h,
                                        int half, int lane) {
#pragma unroll
    for (int i = 0; i < (DB + 1) / 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int d = lane + 32 * i;
            if (d >= half) continue;
            cache[d + j * half] = newest[d + j * half] = __float2bfloat16(h.v[i][j]);
        }
}

/* One warp: the same for its value. */
template <int DB>
__device__ __forceinline__ void put_value(__nv_bfloat16 *cache, __nv_bfloat16 *newest, const word *in, uint32_t tag,
                                          int dim, int lane) {
    const int PLACES = (DB + 1) / 2;
    float2 v[PLACES];
    get_pairs<PLACES>(v, [=](int i) { return in + min(lane * 2 + 64 * i, dim - 2); }, tag);
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
        const int d = lane * 2 + 64 * i;
        if (d >= dim) continue;
        const __nv_bfloat162 pair = __floats2bfloat162_rn(v[i].x, v[i].y);
        *reinterpret_cast<__nv_bfloat162 *>(newest + d) = pair;
        *reinterpret_cast<__nv_bfloat162 *>(cache + d) = pair;
    }
}

/* A warp's 16 keys or values: lane (g, t) holds columns 8t.. of every 32 of rows g and g + 8. */
template <int DB> struct key_tile {
    uint4 row[2][DB];
};

/* Where keys and values of a kv head lie. */
struct key_pages {
    const int32_t *table; /* may be NULL */
    int64_t stride;
    /* Elements from the first page's row 0 to the row of `key`. */
    __device__ __forceinline__ int64_t at(int key, int dim) const {
        const int page = key / NMLP_CUDA_PAGE_POSITIONS;
        return (table ? table[page] : page) * stride + key % NMLP_CUDA_PAGE_POSITIONS * dim;
    }
};

/* Where a lane finds them. */
struct key_source {
    const __nv_bfloat16 *keys; /* the lane's columns of row 0 of the first page */
    const __nv_bfloat16 *values;
    key_pages pages;
    int dim;
    int end;
    int newest; /* not in the cache yet */
};

template <int DB>
__device__ __forceinline__ void load_tile(key_tile<DB> &tile, const __nv_bfloat16 *rows, const key_source &from,
                                          int first, int lane) {
    const int64_t at = first < from.end ? from.pages.at(first, from.dim) : 0; /* all in one page */
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int b = 0; b < DB; b++) {
            const int row = n * 8 + (lane >> 2);
            const int key = first + row;
            const bool wanted = key < from.end && key != from.newest && b * DIMS_PER_BLOCK + (lane & 3) * 8 < from.dim;
            tile.row[n][b] = make_uint4(0, 0, 0, 0);
            if (wanted)
                tile.row[n][b] =
                    __ldcg(reinterpret_cast<const uint4 *>(rows + at + row * from.dim + b * DIMS_PER_BLOCK));
        }
}

/* `newest` [D], of keys or of values. */
template <int DB>
__device__ __forceinline__ void take_newest(key_tile<DB> &tile, const key_source &from, const __nv_bfloat16 *newest,
                                            int first, int lane) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int b = 0; b < DB; b++) {
            const int d = b * DIMS_PER_BLOCK + (lane & 3) * 8;
            if (first + n * 8 + (lane >> 2) != from.newest || from.newest >= from.end || d >= from.dim) continue;
            tile.row[n][b] = *reinterpret_cast<const uint4 *>(newest + d);
        }
}

/* The running softmax of a warp. Lane (g, t) has largest score and sum of head g mod 4; and of the transposed result,
 * 16 columns by 8 rows of Q each, columns g and g + 8 of rows 2t and 2t + 1. */
template <int DB> struct running {
    float top;
    float sum;
    float out[2 * DB][4];
};

__device__ __forceinline__ uint32_t transpose(uint32_t v) {
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}

/* Two weights as this lane's half of them. */
__device__ __forceinline__ uint32_t weight_half(float a, float b, bool low) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    if (low) pair = __floats2bfloat162_rn(a - __low2float(pair), b - __high2float(pair));
    return *reinterpret_cast<const uint32_t *>(&pair);
}

/* Word j of the lane's four: columns 8t + 2j and the next of every 32. */
__device__ __forceinline__ uint32_t word_of(const uint4 &v, int j) {
    return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
}

/* Rows of Q by 16 keys. */
template <int DB>
__device__ __forceinline__ void score_keys(float (&score)[2][4], const key_tile<DB> &keys, const __nv_bfloat16 *queries,
                                           const key_source &from, int lane) {
    const int t = lane & 3;
    const __nv_bfloat16 *q = queries + (lane >> 2) * (from.dim + QUERY_SKEW) + t * 8;
#pragma unroll
    for (int b = 0; b < DB; b++) {
        uint4 a = make_uint4(0, 0, 0, 0);
        if (b * DIMS_PER_BLOCK + t * 8 < from.dim) a = *reinterpret_cast<const uint4 *>(q + b * DIMS_PER_BLOCK);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma(score[n], a.x, 0, a.y, 0, keys.row[n][b].x, keys.row[n][b].y);
            mma(score[n], a.z, 0, a.w, 0, keys.row[n][b].z, keys.row[n][b].w);
        }
    }
}

template <int DB>
__device__ __forceinline__ void add_values(running<DB> &r, float (&score)[2][4], const key_tile<DB> &values,
                                           const key_source &from, int first, int lane) {
    const int t = lane & 3;
    float top = r.top;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float &s = score[i / 2][i % 2];
        s += __shfl_xor_sync(0xffffffffu, s, 16);
        if (first + i / 2 * 8 + t * 2 + i % 2 >= from.end) s = -INFINITY;
        top = fmaxf(top, s);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top; /* no key yet: all weights below are exp(-infinity) */
    const float before = __expf(r.top - base);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float &s = score[i / 2][i % 2];
        s = __expf(s - base);
        sum += s;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    r.top = top;
    r.sum = r.sum * before + sum;
    const uint32_t p0 = weight_half(score[0][0], score[0][1], lane >= 16);
    const uint32_t p1 = weight_half(score[1][0], score[1][1], lane >= 16);
    const float before0 = __shfl_sync(0xffffffffu, before, t * 8);     /* of row 2t, whose lanes are 8t .. 8t + 3 */
    const float before1 = __shfl_sync(0xffffffffu, before, t * 8 + 4); /* of row 2t + 1 */
#pragma unroll
    for (int i = 0; i < 2 * DB; i++) {
        r.out[i][0] *= before0;
        r.out[i][1] *= before1;
        r.out[i][2] *= before0;
        r.out[i][3] *= before1;
        const int j = i % 2 * 2; /* words j and j + 1 of block i / 2 */
        mma(r.out[i], transpose(word_of(values.row[0][i / 2], j)), transpose(word_of(values.row[0][i / 2], j + 1)),
            transpose(word_of(values.row[1][i / 2], j)), transpose(word_of(values.row[1][i / 2], j + 1)), p0, p1);
    }
}

/* Both halves of every head to shared memory. */
template <int DB>
__device__ __forceinline__ void put_warp(float *merged, const running<DB> &r, int dim, int warp, int lane) {
    const int row = dim + 4;
    const int g = lane >> 2;
    const int t = lane & 3;
    float *mine = merged + warp * HEADS_AT_ONCE * row;
#pragma unroll
    for (int i = 0; i < 2 * DB; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float v = r.out[i][e] + __shfl_xor_sync(0xffffffffu, r.out[i][e], 2); /* rows 2t + e and four on */
            const int d = i / 2 * DIMS_PER_BLOCK + (g >> 1) * 8 + (i % 2 * 2 + e / 2) * 2 + (g & 1);
            if (t < 2 && d < dim) mine[(2 * t + e % 2) * row + d] = v;
        }
    if (g < HEADS_AT_ONCE && t == 0) *reinterpret_cast<float2 *>(mine + g * row + dim) = make_float2(r.top, r.sum);
}

/* What the warps have, in one order, to memory. */
__device__ __forceinline__ void write_unit(const nmlp_cuda_decode_phase *ph, uint32_t tag, const float *merged,
                                           int first_head, int n_heads, int chunk) {
    const int dim = ph->head_dim;
    const int row = dim + 4;
    for (int at = threadIdx.x; at < n_heads * dim; at += CONSUMERS) {
        const int h = at / dim;
        const int d = at - h * dim;
        float top = -INFINITY;
        float sum = 0;
        float v = 0;
#pragma unroll
        for (int w = 0; w < NMLP_CUDA_DECODE_CONSUMER_WARPS; w++)
            top = fmaxf(top, merged[(w * HEADS_AT_ONCE + h) * row + dim]);
#pragma unroll
        for (int w = 0; w < NMLP_CUDA_DECODE_CONSUMER_WARPS; w++) {
            const float *from = merged + (w * HEADS_AT_ONCE + h) * row;
            const float weight = __expf(from[dim] - top);
            sum += from[dim + 1] * weight;
            v += from[d] * weight;
        }
        put_word(static_cast<word *>(ph->out) + chunk * ph->out_part_stride + (first_head + h) * dim + d,
                 __float_as_uint(v), tag);
        if (d == 0)
            put_words(static_cast<word *>(ph->softmax) +
                          NMLP_CUDA_DECODE_SOFTMAX_STRIDE * (chunk * ph->n_heads + first_head + h),
                      make_word(__float_as_uint(top), tag), make_word(__float_as_uint(sum), tag));
    }
}

/* Where a unit's queries come from, and where its results go. */
struct attention_unit {
    int kv_head;
    int chunk;
    int first; /* key */
    int end;
    int head; /* first of up to HEADS_AT_ONCE */
    int n_heads;
    bool stores_newest;
};

template <int DB>
__device__ __forceinline__ void run_unit(const nmlp_cuda_decode_phase *ph, const attention_unit &u, uint32_t in_tag,
                                         uint32_t out_tag, const attention_memory &mem, int position,
                                         const int32_t *table) {
    const int warp = threadIdx.x >> 5;
    int lane = threadIdx.x & 31;
    asm volatile("" : "+r"(lane)); /* what depends on it is computed here, not kept in registers through all phases */
    const int dim = ph->head_dim;
    const word *qkv = static_cast<const word *>(ph->op[0].x);
    const int64_t base = u.kv_head * ph->head_stride;
    const key_pages pages = {table, ph->page_stride};
    __nv_bfloat16 *keys = static_cast<__nv_bfloat16 *>(ph->k_cache) + base;
    __nv_bfloat16 *values = static_cast<__nv_bfloat16 *>(ph->v_cache) + base;
    const key_source from = {keys + (lane & 3) * 8, values + (lane & 3) * 8, pages, dim, u.end, position};
    int first = u.first + warp * KEYS_PER_WARP;
    const bool early_values = DB <= 2; /* wider heads have no registers for them while keys are there */
    key_tile<DB> k;
    key_tile<DB> v;
    load_tile(k, from.keys, from, first, lane);
    if (early_values) load_tile(v, from.values, from, first, lane);
    const bool for_key = warp == HEADS_AT_ONCE && u.stores_newest;
    if (warp < u.n_heads || for_key) {
        rotation<DB> r;
        head_columns<DB> h;
        load_rotation(r, ph->rope + (int64_t)position * dim, for_key ? ph->k_norm : ph->q_norm, dim / 2, lane);
        prepare_head(h, qkv + (for_key ? ph->n_heads + u.kv_head : u.head + warp) * dim, in_tag, r,
                     (for_key ? ph->k_norm : ph->q_norm) != nullptr, ph->eps, dim / 2, lane);
        if (for_key)
            put_key(keys + pages.at(position, dim), mem.newest, h, dim / 2, lane);
        else
            put_query(mem.queries, h, warp, ph->scale, dim / 2, lane);
    } else if (warp == HEADS_AT_ONCE + 1 && u.stores_newest) {
        put_value<DB>(values + pages.at(position, dim), mem.newest + dim,
                      qkv + (ph->n_heads + ph->n_kv_heads + u.kv_head) * dim, in_tag, dim, lane);
    }
    consumer_sync();
    running<DB> r;
    r.top = -INFINITY;
    r.sum = 0;
#pragma unroll
    for (int i = 0; i < 2 * DB; i++) r.out[i][0] = r.out[i][1] = r.out[i][2] = r.out[i][3] = 0;
#pragma unroll 1
    for (; first < u.end; first += KEYS_AT_ONCE) {
        float score[2][4] = {};
        const bool more = first + KEYS_AT_ONCE < u.end;
        take_newest(k, from, mem.newest, first, lane);
        score_keys(score, k, mem.queries, from, lane);
        if (!early_values) load_tile(v, from.values, from, first, lane);
        take_newest(v, from, mem.newest + dim, first, lane);
        add_values(r, score, v, from, first, lane);
        if (more) load_tile(k, from.keys, from, first + KEYS_AT_ONCE, lane);
        if (more && early_values) load_tile(v, from.values, from, first + KEYS_AT_ONCE, lane);
    }
    put_warp(mem.merged, r, dim, warp, lane);
    consumer_sync();
    write_unit(ph, out_tag, mem.merged, u.head, u.n_heads, u.chunk);
    consumer_sync();
}

/* Heads of up to DB * 32 columns. `scratch`: the block's input space, f32. */
template <int DB>
__device__ __forceinline__ void run_attention(const nmlp_cuda_decode_phase *ph, uint32_t in_tag, uint32_t out_tag,
                                              float *scratch, int position, const int32_t *table) {
    const int dim = ph->head_dim;
    const int n_keys = position + 1;
    const int per_chunk = keys_per_chunk(n_keys);
    const int n_chunks = (n_keys + per_chunk - 1) / per_chunk;
    const int heads_per_kv = ph->n_heads / ph->n_kv_heads;
    const attention_memory mem = attention_places(scratch, dim);
    for (int i = blockIdx.x; i < ph->n_kv_heads * n_chunks; i += gridDim.x) {
        attention_unit u;
        u.kv_head = i % ph->n_kv_heads;
        u.chunk = i / ph->n_kv_heads;
        u.first = u.chunk * per_chunk;
        u.end = min(n_keys, u.first + per_chunk);
        for (int h = 0; h < heads_per_kv; h += HEADS_AT_ONCE) {
            u.head = u.kv_head * heads_per_kv + h;
            u.n_heads = min((int)HEADS_AT_ONCE, heads_per_kv - h);
            u.stores_newest = u.end == n_keys && h == 0;
            run_unit<DB>(ph, u, in_tag, out_tag, mem, position, table);
        }
    }
}

} // namespace

#endif
