/* Decode attention over paged caches: one query row per sequence (flash decoding).
 *
 * A block takes (row, some heads of a kv head, chunk of keys). Within a warp, `LANES` lanes hold 8 columns each of one
 * key, so one 16-byte load per lane brings a warp 32 / LANES keys. The first rounds of keys and values are requested
 * before the kernel before has ended: a step's rows and the keys before them were there when the step began. Where rows
 * are of different sequences the block then rotates its own heads and appends the new key and value. Every lane group
 * keeps a running softmax (largest score, sum, weighted values); groups are merged by shuffles, warps through shared
 * memory, chunks of keys through L2: the block that arrives last merges them, in the order of the chunks. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/batch/batch_kernels.h"
#include "cuda/batch/decode_attention_keys.cuh"
#include "cuda/batch/decode_attention_softmax.cuh"
#include "cuda/cooperative_launch.cuh"
#include "cuda/rope.cuh"

namespace {

/* ---- the row's own heads ---- */

/* Rotated, in bf16. */
template <int HEADS, int DIM> struct fresh_heads {
    __nv_bfloat16 q[HEADS][DIM];
    __nv_bfloat16 k[DIM];
    __nv_bfloat16 v[DIM];
};

/* The head that a warp makes, and what it needs for it that is there before the head is. */
template <int PAIRS> struct fresh_head {
    bool is_any;
    bool is_q;
    bool is_v;
    const float *from;
    __nv_bfloat16 *cached; /* where the key or value goes; NULL: to no page */
    head_pairs<PAIRS> bias;
    head_pairs<PAIRS> norm;
    head_pairs<PAIRS> angles;
};

/* A warp per query head and, in the chunk that ends with the row's own, one each for the key and the value. */
template <int PAIRS, int HEADS>
__device__ __forceinline__ void prepare(fresh_head<PAIRS> &f, const nmlp_cuda_paged_attention &a,
                                        const attention_unit &unit) {
    const int warp = threadIdx.x >> 5;
    const int half = a.head_dim / 2;
    const bool has_key = unit.range.end == unit.position + 1;
    f.is_q = warp < unit.n_heads;
    f.is_v = warp == HEADS + 1;
    f.is_any = a.appends && (f.is_q || (has_key && (warp == HEADS || f.is_v)));
    f.cached = nullptr;
    if (!f.is_any) return;
    const int head = f.is_q ? unit.head + warp : a.n_heads + (f.is_v ? a.n_kv_heads : 0) + unit.kv_head;
    const float *norm = f.is_v ? nullptr : f.is_q ? a.q_norm : a.k_norm;
    f.from = a.qkv + (int64_t)unit.row * a.qkv_pitch + head * a.head_dim;
    load_pairs(f.angles, a.rope + (int64_t)unit.position * a.head_dim, half);
    if (a.bias) load_pairs(f.bias, a.bias + head * a.head_dim, half);
    if (norm) load_pairs(f.norm, norm, half);
    if (f.is_q || unit.in_group != 0) return;
    const int64_t page = (int64_t)page_of(unit, unit.position) * a.n_kv_heads + unit.kv_head;
    f.cached = static_cast<__nv_bfloat16 *>(f.is_v ? a.v_pages : a.k_pages) +
               (page * PAGE + unit.position % PAGE) * a.head_dim;
}

template <int PAIRS>
__device__ __forceinline__ void make(const fresh_head<PAIRS> &f, const nmlp_cuda_paged_attention &a,
                                     __nv_bfloat16 *to) {
    const int half = a.head_dim / 2;
    head_pairs<PAIRS> p;
    if (!f.is_any) return;
    load_pairs(p, f.from, half);
    if (a.bias) add_pairs(p, f.bias);
    if (!f.is_v) {
        if (f.is_q ? a.q_norm : a.k_norm) norm_pairs(p, f.norm, a.eps, half);
        rotate_pairs(p, f.angles, f.is_q ? a.scale : 1.0f);
    }
    store_pairs(to, p, half);
    if (f.cached) store_pairs(f.cached, p, half);
}

/* ---- attention ---- */

/* What a warp, or a chunk, has of a head: columns, largest score, sum. */
template <int DIM> struct __align__(16) head_sums {
    float out[DIM];
    float top;
    float sum;
    float2 unused;
};

template <int LANES, int HEADS> struct attention_shared {
    head_sums<shape<LANES, HEADS>::DIM> merged[WARPS][HEADS];
    __align__(16) fresh_heads<HEADS, shape<LANES, HEADS>::DIM> fresh;
    bool last;
};

template <int LANES, int HEADS>
__device__ __forceinline__ void load_queries(float (&q)[HEADS][COLS], const nmlp_cuda_paged_attention &a,
                                             const attention_shared<LANES, HEADS> &mem, const attention_unit &unit,
                                             const key_ring<LANES, HEADS> &ring) {
    uint4 bits[HEADS] = {};
    if (a.appends) { /* its head sizes have no columns to spare */
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (h < unit.n_heads) bits[h] = *reinterpret_cast<const uint4 *>(&mem.fresh.q[h][ring.col]);
    } else if (ring.has_cols()) {
        const __nv_bfloat16 *made = static_cast<const __nv_bfloat16 *>(a.q) +
                                    ((int64_t)unit.row * a.n_heads + unit.head) * a.head_dim + ring.col;
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (h < unit.n_heads) bits[h] = *reinterpret_cast<const uint4 *>(made + h * a.head_dim);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) unpack(q[h], bits[h]);
}

/* All rounds of the warp. */
template <int LANES, int HEADS>
__device__ __forceinline__ void add_keys(softmax_state<HEADS> &s, const float (&q)[HEADS][COLS],
                                         const nmlp_cuda_paged_attention &a, const attention_shared<LANES, HEADS> &mem,
                                         const attention_unit &unit, key_ring<LANES, HEADS> &ring) {
    typedef shape<LANES, HEADS> S;
    int stage = 0;
#pragma unroll 1
    for (int base = ring.first; base < unit.range.end; base += S::ROUND) {
        float score[HEADS][UNROLL];
        uint4 k[UNROLL];
        uint4 v[UNROLL];
        bool live[UNROLL];
        await_round<S::STAGES - 1>();
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int key = base + u * S::GROUPS + ring.group;
            const bool own = a.appends && key == unit.position;
            live[u] = key < unit.range.end;
            k[u] = *(own ? reinterpret_cast<const uint4 *>(&mem.fresh.k[ring.col]) : ring.slot(stage, 2 * u));
            v[u] = *(own ? reinterpret_cast<const uint4 *>(&mem.fresh.v[ring.col]) : ring.slot(stage, 2 * u + 1));
        }
        score_keys<LANES>(score, q, k, live);
        add_values(s, score, v);
        ring.refill(unit, stage, base);
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
}

/* What the warp's groups have, in its part of `merged`. */
template <int LANES, int HEADS>
__device__ __forceinline__ void put_sums(softmax_state<HEADS> &s, attention_shared<LANES, HEADS> &mem) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int d = LANES; d < 32; d *= 2) merge_group(s, d);
    if (lane >= LANES) return;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        head_sums<shape<LANES, HEADS>::DIM> &to = mem.merged[threadIdx.x >> 5][h];
        float4 *out = reinterpret_cast<float4 *>(to.out + lane * COLS);
        out[0] = make_float4(s.out[h][0], s.out[h][1], s.out[h][2], s.out[h][3]);
        out[1] = make_float4(s.out[h][4], s.out[h][5], s.out[h][6], s.out[h][7]);
        if (lane == 0) {
            to.top = s.top[h];
            to.sum = s.sum[h];
        }
    }
}

/* Two neighbouring columns of a head. */
struct pair_sums {
    float2 out;
    float top;
    float sum;
};

template <int LANES, int HEADS>
__device__ __forceinline__ pair_sums merge_warps(const attention_shared<LANES, HEADS> &mem, int h, int d) {
    pair_sums p = {make_float2(0, 0), -INFINITY, 0};
#pragma unroll
    for (int w = 0; w < WARPS; w++) p.top = fmaxf(p.top, mem.merged[w][h].top);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float2 out = *reinterpret_cast<const float2 *>(mem.merged[w][h].out + d);
        const float weight = weight_of(mem.merged[w][h].top, zero_of(p.top));
        p.out.x = __fmaf_rn(out.x, weight, p.out.x);
        p.out.y = __fmaf_rn(out.y, weight, p.out.y);
        p.sum = __fmaf_rn(mem.merged[w][h].sum, weight, p.sum);
    }
    return p;
}

/* All chunks of these columns are there: adds them in order. */
__device__ __forceinline__ pair_sums merge_chunks(const float *partial, int n_chunks, int dim, int d) {
    pair_sums p = {make_float2(0, 0), -INFINITY, 0};
    for (int c = 0; c < n_chunks; c++) p.top = fmaxf(p.top, __ldcg(partial + c * (dim + 2) + dim));
    for (int c = 0; c < n_chunks; c++) {
        const float *from = partial + c * (dim + 2);
        const float2 out = __ldcg(reinterpret_cast<const float2 *>(from + d));
        const float2 tail = __ldcg(reinterpret_cast<const float2 *>(from + dim));
        const float weight = weight_of(tail.x, zero_of(p.top));
        p.out.x = __fmaf_rn(out.x, weight, p.out.x);
        p.out.y = __fmaf_rn(out.y, weight, p.out.y);
        p.sum = __fmaf_rn(tail.y, weight, p.sum);
    }
    return p;
}

__device__ __forceinline__ void put_chunk(float *to, const pair_sums &p, int dim, int d) {
    *reinterpret_cast<float2 *>(to + d) = p.out;
    if (d == 0) *reinterpret_cast<float2 *>(to + dim) = make_float2(p.top, p.sum);
}

__device__ __forceinline__ void put_result(__nv_bfloat16 *to, const pair_sums &p) {
    *reinterpret_cast<__nv_bfloat162 *>(to) = __floats2bfloat162_rn(p.out.x / p.sum, p.out.y / p.sum);
}

/* Whether this block is the last of its row and heads. What it and the others stored before is then seen. */
__device__ __forceinline__ bool arrive(const nmlp_cuda_paged_attention &a, const attention_unit &unit, bool &last) {
    uint32_t *arrived = a.arrived + (int64_t)unit.row * unit.n_groups + unit.group;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(arrived, 1u) == (uint32_t)unit.range.n_chunks - 1;
        if (last) atomicExch(arrived, 0u);
    }
    __syncthreads();
    __threadfence();
    return last;
}

/* The warps' sums become the result, or the chunk's part of it. A thread has two columns. */
template <int LANES, int HEADS>
__device__ __forceinline__ void finish(const nmlp_cuda_paged_attention &a, attention_shared<LANES, HEADS> &mem,
                                       const attention_unit &unit) {
    const int DIM = shape<LANES, HEADS>::DIM;
    static_assert(HEADS * DIM <= THREADS * 2, "a thread has two columns");
    const int dim = a.head_dim;
    const int h = (int)threadIdx.x * 2 / DIM;
    const int d = (int)threadIdx.x * 2 % DIM;
    const bool has_columns = h < unit.n_heads && d < dim;
    __nv_bfloat16 *out =
        static_cast<__nv_bfloat16 *>(a.out) + (int64_t)unit.row * a.out_pitch + (unit.head + h) * dim + d;
    pair_sums all = {};
    if (has_columns) all = merge_warps(mem, h, d);
    if (unit.range.n_chunks == 1) {
        if (has_columns) put_result(out, all);
        return;
    }
    float *partial =
        a.partial + ((int64_t)unit.row * a.n_heads + unit.head + h) * NMLP_CUDA_ATTENTION_CHUNKS_MAX * (dim + 2);
    if (has_columns) put_chunk(partial + unit.chunk * (dim + 2), all, dim, d);
    if (!arrive(a, unit, mem.last) || !has_columns) return;
    put_result(out, merge_chunks(partial, unit.range.n_chunks, dim, d));
}

template <int LANES, int HEADS>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) decode_attention_kernel(const nmlp_cuda_paged_attention a) {
    typedef shape<LANES, HEADS> S;
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ attention_shared<LANES, HEADS> mem;
    key_ring<LANES, HEADS> ring;
    fresh_head<S::PAIRS> own;
    begin_dependents();
    if (!a.keys_settled) await_previous();
    const attention_unit unit = take_unit<HEADS>(a);
    if (unit.live) {
        ring.begin(a, unit, memory);
        prepare<S::PAIRS, HEADS>(own, a, unit);
        ask_for_more<LANES, HEADS>(a, unit);
    }
    if (threadIdx.x == 0)
        prefetch_share(a.next, a.next_bytes, (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)),
                       (int)(gridDim.x * gridDim.y * gridDim.z));
    if (a.keys_settled) await_previous();
    if (!unit.live) return;
    if (a.appends) {
        make(own, a, own.is_q ? mem.fresh.q[threadIdx.x >> 5] : own.is_v ? mem.fresh.v : mem.fresh.k);
        __syncthreads();
    }
    float q[HEADS][COLS];
    softmax_state<HEADS> s;
    clear(s);
    load_queries(q, a, mem, unit, ring);
    add_keys(s, q, a, mem, unit, ring);
    put_sums(s, mem);
    __syncthreads();
    finish(a, mem, unit);
}

typedef void kernel_fn(nmlp_cuda_paged_attention);

template <int HEADS> kernel_fn *kernel_of(int head_dim) {
    if (head_dim <= 16) return decode_attention_kernel<2, HEADS>;
    if (head_dim <= 32) return decode_attention_kernel<4, HEADS>;
    return head_dim <= 64 ? decode_attention_kernel<8, HEADS> : decode_attention_kernel<16, HEADS>;
}

template <int HEADS> int64_t n_blocks(const nmlp_cuda_paged_attention *a) {
    return (int64_t)a->n_decode_rows * a->n_kv_heads * head_groups(a->n_heads, a->n_kv_heads, HEADS) * a->n_chunks;
}

/* As much of L1 for shared memory as the kernels before and after have: a multiprocessor that is divided otherwise
 * takes no block beside theirs. */
cudaError_t prepare_kernel(kernel_fn *kernel, int shared_bytes) {
    const void *of = (const void *)kernel;
    const cudaError_t e = cudaFuncSetAttribute(of, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (e != cudaSuccess) return e;
    return cudaFuncSetAttribute(of, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

template <int HEADS> cudaError_t prepare_kernels() {
    const int sizes[] = {16, 32, 64, 128};
    for (int size : sizes) {
        const cudaError_t e = prepare_kernel(kernel_of<HEADS>(size), shape<2, HEADS>::RING_BYTES);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

template <int HEADS> cudaError_t launch(const nmlp_cuda_paged_attention *a, void *stream) {
    const dim3 grid((unsigned)a->n_decode_rows,
                    (unsigned)(a->n_kv_heads * head_groups(a->n_heads, a->n_kv_heads, HEADS)), (unsigned)a->n_chunks);
    return launch_dependent(kernel_of<HEADS>(a->head_dim), grid, THREADS, shape<2, HEADS>::RING_BYTES, stream, *a);
}

} // namespace

int64_t nmlp_cuda_batch_arrivals(int32_t rows, int32_t n_heads, int32_t n_kv_heads) {
    return (int64_t)rows * n_kv_heads * head_groups(n_heads, n_kv_heads, HEADS_FEW);
}

int nmlp_cuda_batch_decode_attention_prepare(void) {
    const cudaError_t e = prepare_kernels<HEADS_FEW>();
    return e == cudaSuccess ? prepare_kernels<HEADS_MANY>() : e;
}

int nmlp_cuda_batch_decode_attention(const nmlp_cuda_paged_attention *a, void *stream) {
    if (a->n_decode_rows == 0) return cudaSuccess;
    const bool few = a->n_heads / a->n_kv_heads <= HEADS_FEW || n_blocks<HEADS_FEW>(a) <= a->n_multiprocessors;
    return few ? launch<HEADS_FEW>(a, stream) : launch<HEADS_MANY>(a, stream);
}
