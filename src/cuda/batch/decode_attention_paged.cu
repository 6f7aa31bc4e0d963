/* Decode attention over paged caches: one query row per sequence (flash decoding).
 *
 * A block takes (row, up to four heads of a kv head, chunk of keys). Within a warp, `LANES` lanes hold 8 columns each
 * of one key, so a warp loads 32 / LANES keys with one 16-byte load per lane; several such loads are in flight before
 * the first is used. Where rows are of different sequences the block first rotates its own heads and appends the new
 * key and value, while the first keys are on their way. Every lane group keeps a running softmax (largest score, sum,
 * weighted values); groups are merged by shuffles, warps through shared memory, chunks of keys through L2: the block
 * that arrives last merges them, in the order of the chunks. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/batch/batch_kernels.h"
#include "cuda/batch/paged.cuh"
#include "cuda/cooperative_launch.cuh"
#include "cuda/l2_prefetch.cuh"
#include "cuda/rope.cuh"

namespace {

enum { ATTENTION_WARPS = 8, HEADS = 4, UNROLL = 2, COLS = 8, HEAD_DIM_MAX = 128, BLOCKS_PER_SM = 2 };

struct softmax_state {
    float top[HEADS];
    float sum[HEADS];
    float out[HEADS][COLS];
};

__device__ __forceinline__ void unpack(float (&v)[COLS], const uint4 &bits) {
    const uint32_t w[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(w[i] << 16);
        v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

/* exp(a - b) where a may be -infinity, and b too. */
__device__ __forceinline__ float weight_of(float a, float b) { return a == -INFINITY ? 0.0f : __expf(a - b); }

/* What another group or warp has is added to `s`. */
__device__ __forceinline__ void merge_group(softmax_state &s, int distance) {
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        const float other = __shfl_xor_sync(0xffffffffu, s.top[h], distance);
        const float top = fmaxf(s.top[h], other);
        const float mine = weight_of(s.top[h], top);
        const float theirs = weight_of(other, top);
        s.sum[h] = s.sum[h] * mine + __shfl_xor_sync(0xffffffffu, s.sum[h], distance) * theirs;
#pragma unroll
        for (int i = 0; i < COLS; i++)
            s.out[h][i] = s.out[h][i] * mine + __shfl_xor_sync(0xffffffffu, s.out[h][i], distance) * theirs;
        s.top[h] = top;
    }
}

/* UNROLL keys of this lane's group; `n` of them exist. */
template <int LANES>
__device__ __forceinline__ void add_keys(softmax_state &s, const float (&q)[HEADS][COLS], const uint4 (&k)[UNROLL],
                                         const uint4 (&v)[UNROLL], const bool (&live)[UNROLL]) {
    float score[HEADS][UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        float key[COLS];
        unpack(key, k[u]);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float dot = 0;
#pragma unroll
            for (int i = 0; i < COLS; i++) dot += q[h][i] * key[i];
#pragma unroll
            for (int d = LANES / 2; d; d >>= 1) dot += __shfl_xor_sync(0xffffffffu, dot, d);
            score[h][u] = live[u] ? dot : -INFINITY;
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float top = s.top[h];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) top = fmaxf(top, score[h][u]);
        const float before = weight_of(s.top[h], top);
        s.sum[h] *= before;
#pragma unroll
        for (int i = 0; i < COLS; i++) s.out[h][i] *= before;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            score[h][u] = weight_of(score[h][u], top);
            s.sum[h] += score[h][u];
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
            for (int i = 0; i < COLS; i++) s.out[h][i] += score[h][u] * value[i];
    }
}

/* Which keys a block takes. */
struct key_range {
    int n_chunks; /* of the row */
    int begin;
    int end;
};

__device__ __forceinline__ key_range range_of(int n_keys, int chunk) {
    const int even = (n_keys + NMLP_CUDA_ATTENTION_CHUNKS_MAX - 1) / NMLP_CUDA_ATTENTION_CHUNKS_MAX;
    const int keys = max((int)NMLP_CUDA_ATTENTION_CHUNK,
                         (even + NMLP_CUDA_PAGE_POSITIONS - 1) / NMLP_CUDA_PAGE_POSITIONS * NMLP_CUDA_PAGE_POSITIONS);
    return {(n_keys + keys - 1) / keys, chunk * keys, min(n_keys, (chunk + 1) * keys)};
}

/* The row's own heads, rotated, in bf16. */
struct fresh_heads {
    __nv_bfloat16 q[HEADS][HEAD_DIM_MAX];
    __nv_bfloat16 k[HEAD_DIM_MAX];
    __nv_bfloat16 v[HEAD_DIM_MAX];
};

/* A warp per query head and, with `has_key`, one each for the key and the value, which also go to `cached` in the pages
 * where this block `stores` them. */
__device__ __forceinline__ void make_fresh(fresh_heads &fresh, const nmlp_cuda_paged_attention &a, int row, int head,
                                           int n_heads, int kv_head, bool has_key, int64_t cached, bool stores) {
    const int warp = threadIdx.x >> 5;
    const int half = a.head_dim / 2;
    const bool is_q = warp < n_heads;
    const bool is_v = warp == HEADS + 1;
    if (!is_q && !(has_key && (warp == HEADS || is_v))) return;
    const int from = is_q ? head + warp : a.n_heads + (is_v ? a.n_kv_heads : 0) + kv_head;
    const float *norm = is_q ? a.q_norm : a.k_norm;
    head_pairs p;
    row_angles angles;
    load_pairs(p, a.qkv + (int64_t)row * a.qkv_pitch + from * a.head_dim, half);
    load_pairs(angles, a.rope + (int64_t)a.rows.position[row] * a.head_dim, half);
    if (a.bias) add_pairs(p, a.bias + from * a.head_dim, half);
    if (!is_v && norm) norm_pairs(p, norm, a.eps, half);
    if (!is_v) rotate_pairs(p, angles, is_q ? a.scale : 1.0f);
    store_pairs(is_q ? fresh.q[warp] : is_v ? fresh.v : fresh.k, p, half);
    if (!is_q && stores) store_pairs(static_cast<__nv_bfloat16 *>(is_v ? a.v_pages : a.k_pages) + cached, p, half);
}

/* All chunks of one head's column are there: adds them in order. */
__device__ __forceinline__ float merge_chunks(const float *partial, int n_chunks, int dim, int d) {
    float top = -INFINITY;
    float sum = 0;
    float v = 0;
    for (int c = 0; c < n_chunks; c++) top = fmaxf(top, __ldcg(partial + c * (dim + 2) + dim));
    for (int c = 0; c < n_chunks; c++) {
        const float *from = partial + c * (dim + 2);
        const float w = weight_of(__ldcg(from + dim), top);
        v += __ldcg(from + d) * w;
        sum += __ldcg(from + dim + 1) * w;
    }
    return v / sum;
}

/* What a block takes of a step: a row, up to HEADS query heads of a kv head, a chunk of keys. */
struct attention_unit {
    int row;
    int group; /* kv head and group of its query heads */
    int chunk;
};

struct attention_shared {
    float merged[ATTENTION_WARPS][HEADS][HEAD_DIM_MAX + 2];
    __align__(16) fresh_heads fresh;
    bool last;
};

__device__ __forceinline__ void put_pair(__nv_bfloat16 *to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162 *>(to) = __floats2bfloat162_rn(a, b);
}

/* A unit of a row that exists. */
template <int LANES>
__device__ __forceinline__ void attend(const nmlp_cuda_paged_attention &a, attention_shared &mem,
                                       const attention_unit &unit) {
    const int KEYS = 32 / LANES; /* of one load of a warp */
    const int row = unit.row;
    const int sequence = a.rows.sequence[row];
    const int dim = a.head_dim;
    const int per_kv = a.n_heads / a.n_kv_heads;
    const int groups = (per_kv + HEADS - 1) / HEADS;
    const int kv_head = unit.group / groups;
    const int in_group = unit.group % groups * HEADS;
    const int head = kv_head * per_kv + in_group;
    const int n_heads = min((int)HEADS, per_kv - in_group);
    const int position = a.rows.position[row];
    const key_range range = range_of(position + 1, unit.chunk);
    if (unit.chunk >= range.n_chunks) return;
    const int warp = threadIdx.x >> 5;
    const int lane = threadIdx.x & 31;
    const int group = lane / LANES;
    const int col = lane % LANES * COLS;
    const bool has_cols = col < dim;
    const int32_t *table = a.tables + (int64_t)sequence * a.table_pages;
    const __nv_bfloat16 *keys = static_cast<const __nv_bfloat16 *>(a.k_pages) + col;
    const __nv_bfloat16 *values = static_cast<const __nv_bfloat16 *>(a.v_pages) + col;
    const int64_t own = page_row(table, position, kv_head, a.n_kv_heads) * dim;
    float q[HEADS][COLS];
    softmax_state s;
    uint4 k[UNROLL];
    uint4 v[UNROLL];
    bool live[UNROLL];
    const auto load_keys = [&](int base) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int key = base + u * KEYS + group;
            live[u] = key < range.end;
            k[u] = v[u] = make_uint4(0, 0, 0, 0);
            if (live[u] && has_cols && !(a.appends && key == position)) {
                const int64_t at = page_row(table, key, kv_head, a.n_kv_heads) * dim;
                k[u] = *reinterpret_cast<const uint4 *>(keys + at);
                v[u] = *reinterpret_cast<const uint4 *>(values + at);
            }
        }
    };
    int base = range.begin + warp * KEYS * UNROLL;
    load_keys(base); /* in flight while the row's own heads are rotated */
    if (a.appends) {
        make_fresh(mem.fresh, a, row, head, n_heads, kv_head, range.end == position + 1, own, in_group == 0);
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        uint4 bits = make_uint4(0, 0, 0, 0);
        if (h < n_heads && has_cols)
            bits = a.appends ? *reinterpret_cast<const uint4 *>(&mem.fresh.q[h][col])
                             : *reinterpret_cast<const uint4 *>(static_cast<const __nv_bfloat16 *>(a.q) +
                                                                ((int64_t)row * a.n_heads + head + h) * dim + col);
        unpack(q[h], bits);
        s.top[h] = -INFINITY;
        s.sum[h] = 0;
#pragma unroll
        for (int i = 0; i < COLS; i++) s.out[h][i] = 0;
    }
    while (base < range.end) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (a.appends && base + u * KEYS + group == position) {
                k[u] = *reinterpret_cast<const uint4 *>(&mem.fresh.k[col]);
                v[u] = *reinterpret_cast<const uint4 *>(&mem.fresh.v[col]);
            }
        }
        add_keys<LANES>(s, q, k, v, live);
        base += ATTENTION_WARPS * KEYS * UNROLL;
        load_keys(base);
    }
#pragma unroll
    for (int d = LANES; d < 32; d *= 2) merge_group(s, d);
    if (group == 0) {
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
#pragma unroll
            for (int i = 0; i < COLS; i++)
                if (has_cols) mem.merged[warp][h][col + i] = s.out[h][i];
            if (lane == 0) {
                mem.merged[warp][h][dim] = s.top[h];
                mem.merged[warp][h][dim + 1] = s.sum[h];
            }
        }
    }
    __syncthreads();
    __nv_bfloat16 *out = static_cast<__nv_bfloat16 *>(a.out) + (int64_t)row * a.out_pitch + head * dim;
    float *partial = a.partial + ((int64_t)row * a.n_heads + head) * NMLP_CUDA_ATTENTION_CHUNKS_MAX * (dim + 2);
    const int64_t head_floats = (int64_t)NMLP_CUDA_ATTENTION_CHUNKS_MAX * (dim + 2);
    for (int i = threadIdx.x * 2; i < n_heads * dim; i += ATTENTION_WARPS * 32 * 2) {
        const int h = i / dim;
        const int d = i - h * dim;
        float top = -INFINITY;
        float sum = 0;
        float2 v = make_float2(0, 0);
#pragma unroll
        for (int w = 0; w < ATTENTION_WARPS; w++) top = fmaxf(top, mem.merged[w][h][dim]);
#pragma unroll
        for (int w = 0; w < ATTENTION_WARPS; w++) {
            const float weight = weight_of(mem.merged[w][h][dim], top);
            v.x += mem.merged[w][h][d] * weight;
            v.y += mem.merged[w][h][d + 1] * weight;
            sum += mem.merged[w][h][dim + 1] * weight;
        }
        if (range.n_chunks == 1) {
            put_pair(out + i, v.x / sum, v.y / sum);
            continue;
        }
        float *to = partial + h * head_floats + unit.chunk * (dim + 2);
        to[d] = v.x;
        to[d + 1] = v.y;
        if (d == 0) {
            to[dim] = top;
            to[dim + 1] = sum;
        }
    }
    if (range.n_chunks == 1) return;
    uint32_t *arrived = a.arrived + (int64_t)row * a.n_kv_heads * groups + unit.group;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) mem.last = atomicAdd(arrived, 1u) == (uint32_t)range.n_chunks - 1;
    __syncthreads();
    if (!mem.last) return;
    if (threadIdx.x == 0) atomicExch(arrived, 0u);
    __threadfence();
    for (int i = threadIdx.x * 2; i < n_heads * dim; i += ATTENTION_WARPS * 32 * 2) {
        const float *from = partial + i / dim * head_floats;
        put_pair(out + i, merge_chunks(from, range.n_chunks, dim, i % dim),
                 merge_chunks(from, range.n_chunks, dim, i % dim + 1));
    }
}

__host__ __device__ __forceinline__ int head_groups(int n_heads, int n_kv_heads) {
    return (n_heads / n_kv_heads + HEADS - 1) / HEADS;
}

/* Every thread asks for the part of a page of keys, or of values, that the unit reads. Which keys those are was known
 * before the kernel before; where it was not, and the answer is an old one, nothing is lost but the reading. */
__device__ __forceinline__ void ask_for_keys(const nmlp_cuda_paged_attention &a, const attention_unit &unit) {
    const int sequence = __ldcg(a.rows.sequence + unit.row);
    if (!a.asks_early || sequence < 0) return;
    const key_range range = range_of(__ldcg(a.rows.position + unit.row), unit.chunk); /* its own key is not there */
    const int kv_head = unit.group / head_groups(a.n_heads, a.n_kv_heads);
    const int first = (range.begin / NMLP_CUDA_PAGE_POSITIONS + (int)threadIdx.x / 2) * NMLP_CUDA_PAGE_POSITIONS;
    if (first >= range.end) return;
    const int page =
        __ldcg(a.tables + (int64_t)sequence * a.table_pages + min(first / NMLP_CUDA_PAGE_POSITIONS, a.table_pages - 1));
    const int64_t at = ((int64_t)page * a.n_kv_heads + kv_head) * NMLP_CUDA_PAGE_POSITIONS * a.head_dim;
    const void *pages = threadIdx.x % 2 ? a.v_pages : a.k_pages;
    prefetch_bytes(static_cast<const __nv_bfloat16 *>(pages) + at,
                   (uint32_t)(min(NMLP_CUDA_PAGE_POSITIONS, range.end - first) * a.head_dim * 2));
}

template <int LANES>
__global__ void __launch_bounds__(ATTENTION_WARPS * 32, BLOCKS_PER_SM)
    decode_attention_kernel(const nmlp_cuda_paged_attention a) {
    __shared__ attention_shared mem;
    const attention_unit unit = {(int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z};
    begin_dependents();
    ask_for_keys(a, unit);
    if (threadIdx.x == 0)
        prefetch_share(a.next, a.next_bytes, (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)),
                       (int)(gridDim.x * gridDim.y * gridDim.z));
    await_previous();
    if (a.rows.sequence[unit.row] < 0) return;
    attend<LANES>(a, mem, unit);
}

} // namespace

int64_t nmlp_cuda_batch_arrivals(int32_t rows, int32_t n_heads, int32_t n_kv_heads) {
    return (int64_t)rows * n_kv_heads * head_groups(n_heads, n_kv_heads);
}

int nmlp_cuda_batch_decode_attention(const nmlp_cuda_paged_attention *a, void *stream) {
    const dim3 grid((unsigned)a->n_decode_rows, (unsigned)(a->n_kv_heads * head_groups(a->n_heads, a->n_kv_heads)),
                    (unsigned)a->n_chunks);
    if (a->n_decode_rows == 0) return cudaSuccess;
    if (a->head_dim <= 16)
        return launch_dependent(decode_attention_kernel<2>, grid, ATTENTION_WARPS * 32, 0, stream, *a);
    if (a->head_dim <= 32)
        return launch_dependent(decode_attention_kernel<4>, grid, ATTENTION_WARPS * 32, 0, stream, *a);
    if (a->head_dim <= 64)
        return launch_dependent(decode_attention_kernel<8>, grid, ATTENTION_WARPS * 32, 0, stream, *a);
    return launch_dependent(decode_attention_kernel<16>, grid, ATTENTION_WARPS * 32, 0, stream, *a);
}
