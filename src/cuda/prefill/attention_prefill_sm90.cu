/* Causal attention of prompts over paged caches, on Hopper: wgmma for both products, pages of keys and values brought
 * by TMA.
 *
 * A block takes 128 queries of one head, or of two that share keys. Each warpgroup has 64 queries in registers and
 * walks through the pages with a running softmax; while it turns the scores of one step into weights, the tensor cores
 * add the values of the step before. One more warp requests pages into a ring of stages. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/prefill/attention_prefill_sm90.h"
#include "cuda/sm90.cuh"

namespace {

enum {
    PAGE = NMLP_CUDA_PAGE_POSITIONS,
    GROUP_THREADS = 128,
    GROUP_WARPS = GROUP_THREADS / 32,
    GROUP_QUERIES = 64,
    TILE_GROUPS = NMLP_CUDA_ATTENTION_TILE_ROWS / GROUP_QUERIES,
    BLOCK = 64, /* columns of a swizzled row */
    BOX_BYTES = PAGE * BLOCK * 2,
    SUMS = GROUP_QUERIES * 64 / GROUP_THREADS, /* of a thread, of 64 x 64 */
    SHARED_BYTES_MAX = 227 * 1024
};

/* HEADS that share a block, PAGES of a step. */
template <int D, int HEADS, int PAGES> struct shape {
    enum {
        GROUPS = HEADS * TILE_GROUPS,
        THREADS = (1 + GROUPS) * GROUP_THREADS,
        STAGED = GROUPS > 2, /* queries lie in shared memory: there are not enough registers */
        /* of a thread of the producer's warpgroup, and of the others */
        PRODUCER_REGISTERS = 24,
        CONSUMER_REGISTERS = STAGED ? 112 : 240,
        KEYS = PAGES * PAGE,
        COL_BLOCKS = D / BLOCK,
        COL_BLOCK_BYTES = PAGES * BOX_BYTES,
        K_BYTES = COL_BLOCKS * COL_BLOCK_BYTES,
        STAGE_BYTES = 2 * K_BYTES, /* keys, values */
        Q_BYTES = STAGED ? GROUPS * COL_BLOCKS * BOX_BYTES : 0,
        STAGES_FIT = (SHARED_BYTES_MAX - 1024 - Q_BYTES) / STAGE_BYTES,
        STAGES = STAGES_FIT < 6 ? STAGES_FIT : 6,
        BYTES = STAGES * STAGE_BYTES + Q_BYTES + 2 * STAGES * 8
    };
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Shared memory of a block, and where one of its threads stands in the ring. */
template <int STAGES> struct ring_cursor {
    uint32_t full; /* barriers, 8 bytes each */
    uint32_t empty;
    int stage;
    uint32_t parity;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* c [64 queries, 64] (+)= a [64,16] b, b [64,16] in rows of shared memory. */
__device__ __forceinline__ void multiply_keys(float (&c)[SUMS], const uint32_t *a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
                   "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* The same with both in shared memory. */
__device__ __forceinline__ void multiply_staged(float (&c)[SUMS], uint64_t a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0; }"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
                   "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "l"(a), "l"(b), "r"(add));
}

/* c [64 queries, 64] += a [64,16] b, b [16,64] in rows of shared memory. */
__device__ __forceinline__ void multiply_values(float (&c)[SUMS], const uint32_t *a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
                   "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ uint32_t pack(float a, float b) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&v);
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ nmlp_cuda_query_tile tile_of(const nmlp_cuda_attention_sm90 &job, int i) {
    if (job.tiles) return job.tiles[i];
    const int row = i * NMLP_CUDA_ATTENTION_TILE_ROWS;
    return {row, min((int)NMLP_CUDA_ATTENTION_TILE_ROWS, job.n_rows - row), job.position + row, 0};
}

/* One thread requests all pages that a query of the tile sees. */
template <int D, int HEADS, int PAGES>
__device__ void produce_pages(const nmlp_cuda_attention_sm90 &job, const nmlp_cuda_query_tile &tile, int kv_head,
                              uint32_t stages, ring_cursor<shape<D, HEADS, PAGES>::STAGES> ring) {
    using S = shape<D, HEADS, PAGES>;
    const int32_t *table = job.tables ? job.tables + (int64_t)tile.sequence * job.table_pages : nullptr;
    const int n_pages = (tile.position + tile.n + PAGE - 1) / PAGE;
    for (int i = 0; i < n_pages; i += PAGES) {
        const int here = min(PAGES, n_pages - i);
        const uint32_t full = ring.full + ring.stage * 8;
        const uint32_t k = stages + ring.stage * S::STAGE_BYTES;
        sm90::mbar_wait(ring.empty + ring.stage * 8, ring.parity ^ 1);
        sm90::mbar_expect(full, (uint32_t)(here * 2 * S::COL_BLOCKS * BOX_BYTES));
        for (int page = 0; page < here; page++) {
            const int row =
                table ? (table[i + page] * job.n_kv_heads + kv_head) * PAGE : kv_head * job.context + (i + page) * PAGE;
            for (int block = 0; block < S::COL_BLOCKS; block++) {
                const uint32_t to = k + block * S::COL_BLOCK_BYTES + page * BOX_BYTES;
                sm90::load_box(to, &job.cache.k, block * BLOCK, row, full);
                sm90::load_box(to + S::K_BYTES, &job.cache.v, block * BLOCK, row, full);
            }
        }
        ring.advance();
    }
}

/* The 64 queries of a warpgroup, of one head. A thread has columns t*2 and t*2+1 of every 8 of rows g and g+8 of its
 * warp's 16. */
struct query_rows {
    int head;
    int first; /* row of the tile */
    int row;   /* the thread's first one: first + its warp's 16 + g */
    __device__ __forceinline__ query_rows(int head_of_group, int first_row)
        : head(head_of_group), first(first_row),
          row(first_row + (int)(threadIdx.x % GROUP_THREADS >> 5) * 16 + (int)(threadIdx.x & 31) / 4) {}
};

template <int D>
__device__ __forceinline__ void load_queries(uint32_t (&q)[D / 4], const nmlp_cuda_attention_sm90 &job,
                                             const nmlp_cuda_query_tile &tile, const query_rows &mine) {
    const int t = threadIdx.x & 3;
    const int64_t pitch = (int64_t)job.n_heads * D;
    const __nv_bfloat16 *from = static_cast<const __nv_bfloat16 *>(job.q) + tile.row * pitch + mine.head * D;
#pragma unroll
    for (int i = 0; i < D / 4; i++) {
        const int row = min(mine.row + (i & 1) * 8, tile.n - 1);
        q[i] = *reinterpret_cast<const uint32_t *>(from + row * pitch + i / 4 * 16 + t * 2 + (i >> 1 & 1) * 8);
    }
}

/* The same rows into shared memory, swizzled. */
template <int D>
__device__ __forceinline__ void stage_queries(uint32_t queries, const nmlp_cuda_attention_sm90 &job,
                                              const nmlp_cuda_query_tile &tile, const query_rows &mine, int group) {
    const int thread = threadIdx.x % GROUP_THREADS;
    const int64_t pitch = (int64_t)job.n_heads * D;
    const __nv_bfloat16 *from = static_cast<const __nv_bfloat16 *>(job.q) + tile.row * pitch + mine.head * D;
#pragma unroll
    for (int i = thread; i < GROUP_QUERIES * (D / 8); i += GROUP_THREADS) {
        const int row = i / (D / 8);
        const int chunk = i % (D / 8);
        const uint4 v = *reinterpret_cast<const uint4 *>(from + min(mine.first + row, tile.n - 1) * pitch + chunk * 8);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                         queries + chunk / 8 * BOX_BYTES + row * sm90::SWIZZLE_BYTES + ((chunk ^ row) & 7) * 16),
                     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

/* Asks for score [64 queries, keys of the stage] = Q K^T. */
template <int D, int PAGES, bool STAGED>
__device__ __forceinline__ void begin_scores(float (&score)[PAGES][SUMS], const uint32_t *q, uint32_t queries,
                                             uint32_t k) {
#pragma unroll
    for (int page = 0; page < PAGES; page++) {
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            const uint32_t at = k + kk / 4 * (PAGES * BOX_BYTES) + page * BOX_BYTES + kk % 4 * 32;
            if constexpr (STAGED)
                multiply_staged(score[page], sm90::descriptor(queries + kk / 4 * BOX_BYTES + kk % 4 * 32),
                                sm90::descriptor(at), kk);
            else
                multiply_keys(score[page], q + kk * 4, sm90::descriptor(at), kk);
        }
    }
}

/* Asks for out += P V. */
template <int D, int PAGES>
__device__ __forceinline__ void begin_values(float (&out)[D / BLOCK][SUMS], const uint32_t (&p)[PAGES][SUMS / 2],
                                             uint32_t v) {
#pragma unroll
    for (int block = 0; block < D / BLOCK; block++) {
#pragma unroll
        for (int kk = 0; kk < PAGES * 4; kk++)
            multiply_values(out[block], p[kk / 4] + kk % 4 * 4,
                            sm90::descriptor(v + block * (PAGES * BOX_BYTES) + kk * 16 * sm90::SWIZZLE_BYTES));
    }
}

/* Hides keys after a query. `last` is the last key that the thread's first row sees, counted from the step's first. */
template <int PAGES> __device__ __forceinline__ void mask_scores(float (&score)[PAGES][SUMS], int last) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int page = 0; page < PAGES; page++)
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            if (page * PAGE + i / 4 * 8 + t * 2 + (i & 1) > last + (i >> 1 & 1) * 8) score[page][i] = -INFINITY;
}

/* The softmax of a thread's two rows so far; `sum` is of the thread's own keys. */
struct running {
    float top[2];
    float sum[2];
    float keep[2]; /* what results so far are multiplied by */
};

template <int PAGES> __device__ __forceinline__ void soften(float (&score)[PAGES][SUMS], running &r) {
    const float log2e = 1.4426950408889634f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = r.top[i];
#pragma unroll
        for (int page = 0; page < PAGES; page++)
#pragma unroll
            for (int n = 0; n < SUMS; n += 4) m = fmaxf(m, fmaxf(score[page][n + 2 * i], score[page][n + 2 * i + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const float base = m == -INFINITY ? 0.0f : m * log2e;
        r.keep[i] = power_of_2(fmaf(r.top[i], log2e, -base));
        r.top[i] = m;
        float sum = 0;
#pragma unroll
        for (int page = 0; page < PAGES; page++)
#pragma unroll
            for (int n = 0; n < SUMS; n += 4) {
                float *two = &score[page][n + 2 * i];
                two[0] = power_of_2(fmaf(two[0], log2e, -base));
                two[1] = power_of_2(fmaf(two[1], log2e, -base));
                sum += two[0] + two[1];
            }
        r.sum[i] = fmaf(r.sum[i], r.keep[i], sum);
    }
}

/* Results so far to the new largest scores; weights as the tensor cores take them. */
template <int D, int PAGES>
__device__ __forceinline__ void rescale_and_pack(float (&out)[D / BLOCK][SUMS], uint32_t (&p)[PAGES][SUMS / 2],
                                                 const float (&score)[PAGES][SUMS], const running &r) {
#pragma unroll
    for (int block = 0; block < D / BLOCK; block++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) out[block][i] *= r.keep[i >> 1 & 1];
#pragma unroll
    for (int page = 0; page < PAGES; page++)
#pragma unroll
        for (int i = 0; i < SUMS / 2; i++) p[page][i] = pack(score[page][2 * i], score[page][2 * i + 1]);
}

/* Rows of a page that belong to nobody yet may hold anything, and nothing times NaN is NaN. Every warpgroup that reads
 * them clears them for itself. */
template <int D, int PAGES> __device__ __forceinline__ void clear_values(uint32_t v, int first, int group) {
    const int thread = threadIdx.x % GROUP_THREADS;
    for (int block = 0; block < D / BLOCK; block++)
        for (int at = first * sm90::SWIZZLE_BYTES + thread * 16; at < PAGES * BOX_BYTES; at += GROUP_THREADS * 16)
            asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + block * (PAGES * BOX_BYTES) + at), "r"(0)
                         : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

template <int D>
__device__ __forceinline__ void store_rows(const nmlp_cuda_attention_sm90 &job, const nmlp_cuda_query_tile &tile,
                                           const query_rows &mine, const float (&out)[D / BLOCK][SUMS],
                                           const running &r) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = mine.row + i * 8;
        float all = r.sum[i];
        all += __shfl_xor_sync(0xffffffffu, all, 1);
        all += __shfl_xor_sync(0xffffffffu, all, 2);
        if (row >= tile.n) continue;
        __nv_bfloat16 *to =
            static_cast<__nv_bfloat16 *>(job.out) + (int64_t)(tile.row + row) * job.out_pitch + mine.head * D + t * 2;
        const float scale = 1.0f / all;
#pragma unroll
        for (int block = 0; block < D / BLOCK; block++)
#pragma unroll
            for (int n = 0; n < SUMS / 4; n++)
                *reinterpret_cast<uint32_t *>(to + block * BLOCK + n * 8) =
                    pack(out[block][n * 4 + 2 * i] * scale, out[block][n * 4 + 2 * i + 1] * scale);
    }
}

/* All warps of a group say for themselves that they have read a stage: they need not be equally far. */
__device__ __forceinline__ void release_stage(uint32_t empty) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) sm90::mbar_arrive(empty);
}

/* What a warpgroup needs to know to walk through the steps of its tile. */
template <int D, int HEADS, int PAGES> struct walk {
    using S = shape<D, HEADS, PAGES>;
    uint32_t stages;
    uint32_t queries; /* the group's, where they are staged */
    int group;
    int n;             /* steps that its queries see */
    int n_block;       /* steps that the producer fills */
    int rest;          /* keys of the last of those, where it is not full; or 0 */
    int position;      /* of the thread's first row */
    int warp_position; /* no query of the warp is before that one */
    ring_cursor<S::STAGES> ring;

    __device__ __forceinline__ walk(const nmlp_cuda_query_tile &tile, const query_rows &mine, int group_of_block,
                                    uint32_t first_stage, uint32_t first_query, const ring_cursor<S::STAGES> &first)
        : stages(first_stage), queries(first_query + group_of_block * (S::COL_BLOCKS * BOX_BYTES)),
          group(group_of_block), ring(first) {
        const int end = tile.position + tile.n;
        const int seen = mine.first < tile.n ? tile.position + min(mine.first + GROUP_QUERIES, tile.n) : 0;
        n = (seen + S::KEYS - 1) / S::KEYS;
        n_block = (end + S::KEYS - 1) / S::KEYS;
        rest = end % S::KEYS;
        position = tile.position + mine.row;
        warp_position = position - (int)(threadIdx.x & 31) / 4;
    }
    __device__ __forceinline__ uint32_t keys() const { return stages + ring.stage * S::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t values() const { return keys() + S::K_BYTES; }
    __device__ __forceinline__ uint32_t empty() const { return ring.empty + ring.stage * 8; }
    __device__ __forceinline__ void await_stage() const { sm90::mbar_wait(ring.full + ring.stage * 8, ring.parity); }
};

/* A warpgroup's operands and sums. */
template <int D, int HEADS, int PAGES> struct operands {
    uint32_t q[shape<D, HEADS, PAGES>::STAGED ? 1 : D / 4];
    uint32_t p[PAGES][SUMS / 2];
    float score[PAGES][SUMS];
    float out[D / BLOCK][SUMS];
};

/* The scores of step i are there: what a query does not see is hidden, the rest becomes weights. */
template <int D, int HEADS, int PAGES>
__device__ __forceinline__ void finish_scores(operands<D, HEADS, PAGES> &o, running &r, const walk<D, HEADS, PAGES> &w,
                                              int i) {
    const int first_key = i * PAGES * PAGE;
#pragma unroll
    for (int page = 0; page < PAGES; page++) sm90::wgmma_results(o.score[page]);
    if (first_key + PAGES * PAGE - 1 > w.warp_position) mask_scores<PAGES>(o.score, w.position - first_key);
    soften<PAGES>(o.score, r);
}

template <int D, int HEADS, int PAGES>
__device__ __forceinline__ void finish_values(operands<D, HEADS, PAGES> &o, uint32_t empty) {
    sm90::wgmma_wait<0>();
#pragma unroll
    for (int block = 0; block < D / BLOCK; block++) sm90::wgmma_results(o.out[block]);
    release_stage(empty);
}

template <int D, int HEADS, int PAGES>
__device__ __forceinline__ void first_step(operands<D, HEADS, PAGES> &o, running &r, const walk<D, HEADS, PAGES> &w) {
    w.await_stage();
    sm90::wgmma_begin();
    begin_scores<D, PAGES, (bool)shape<D, HEADS, PAGES>::STAGED>(o.score, o.q, w.queries, w.keys());
    sm90::wgmma_commit();
    sm90::wgmma_wait<0>();
    finish_scores(o, r, w, 0);
    rescale_and_pack<D, PAGES>(o.out, o.p, o.score, r);
}

/* The scores of step i, then the values of the step before; softmax while the latter are added. */
template <int D, int HEADS, int PAGES>
__device__ __forceinline__ void next_step(operands<D, HEADS, PAGES> &o, running &r, walk<D, HEADS, PAGES> &w, int i) {
    const uint32_t values_before = w.values();
    const uint32_t empty_before = w.empty();
    w.ring.advance();
    w.await_stage();
    sm90::wgmma_begin();
    begin_scores<D, PAGES, (bool)shape<D, HEADS, PAGES>::STAGED>(o.score, o.q, w.queries, w.keys());
    sm90::wgmma_commit();
    begin_values<D, PAGES>(o.out, o.p, values_before);
    sm90::wgmma_commit();
    sm90::wgmma_wait<1>();
    finish_scores(o, r, w, i);
    finish_values(o, empty_before);
    rescale_and_pack<D, PAGES>(o.out, o.p, o.score, r);
}

template <int D, int HEADS, int PAGES>
__device__ __forceinline__ void last_values(operands<D, HEADS, PAGES> &o, walk<D, HEADS, PAGES> &w) {
    if (w.n == w.n_block && w.rest) clear_values<D, PAGES>(w.values(), w.rest, w.group);
    sm90::wgmma_begin();
    begin_values<D, PAGES>(o.out, o.p, w.values());
    sm90::wgmma_commit();
    finish_values(o, w.empty());
    w.ring.advance();
}

template <int D, int HEADS, int PAGES>
__device__ __forceinline__ void attend(const nmlp_cuda_attention_sm90 &job, const nmlp_cuda_query_tile &tile,
                                       const query_rows &mine, walk<D, HEADS, PAGES> &w) {
    if (w.n > 0) {
        operands<D, HEADS, PAGES> o = {};
        running r = {{-INFINITY, -INFINITY}, {}, {}};
        if constexpr ((bool)shape<D, HEADS, PAGES>::STAGED)
            stage_queries<D>(w.queries, job, tile, mine, w.group);
        else
            load_queries<D>(o.q, job, tile, mine);
        first_step(o, r, w);
        for (int i = 1; i < w.n; i++) next_step(o, r, w, i);
        last_values(o, w);
        store_rows<D>(job, tile, mine, o.out, r);
    }
    for (int i = w.n; i < w.n_block; i++) { /* steps for later queries of the tile */
        w.await_stage();
        release_stage(w.empty());
        w.ring.advance();
    }
}

#endif

template <int D, int HEADS, int PAGES>
__global__ void __launch_bounds__((int)shape<D, HEADS, PAGES>::THREADS, 1)
    attention_sm90_kernel(const __grid_constant__ nmlp_cuda_attention_sm90 job) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = shape<D, HEADS, PAGES>;
    extern __shared__ __align__(1024) unsigned char memory[];
    const nmlp_cuda_query_tile tile = tile_of(job, (int)(gridDim.y - 1 - blockIdx.y)); /* those with most keys first */
    const int head = (int)blockIdx.x * HEADS;
    const uint32_t stages = sm90::shared_address(memory);
    const uint32_t queries = stages + S::STAGES * S::STAGE_BYTES;
    const uint32_t full = queries + S::Q_BYTES;
    const ring_cursor<S::STAGES> ring = {full, full + S::STAGES * 8, 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            sm90::mbar_init(ring.full + i * 8, 1);
            sm90::mbar_init(ring.empty + i * 8, S::GROUPS * GROUP_WARPS);
        }
        sm90::fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < GROUP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)S::PRODUCER_REGISTERS));
        const int per_kv_head = job.n_heads / job.n_kv_heads;
        if (threadIdx.x == 0) produce_pages<D, HEADS, PAGES>(job, tile, head / per_kv_head, stages, ring);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)S::CONSUMER_REGISTERS));
        const int group = (int)threadIdx.x / GROUP_THREADS - 1;
        const query_rows mine(head + group / TILE_GROUPS, group % TILE_GROUPS * GROUP_QUERIES);
        walk<D, HEADS, PAGES> w(tile, mine, group, stages, queries, ring);
        attend(job, tile, mine, w);
    }
#endif
}

template <int D, int HEADS, int PAGES> cudaError_t launch(const nmlp_cuda_attention_sm90 &job, void *stream) {
    using S = shape<D, HEADS, PAGES>;
    const dim3 grid((unsigned)(job.n_heads / HEADS), (unsigned)job.n_tiles);
    const cudaError_t e = cudaFuncSetAttribute(attention_sm90_kernel<D, HEADS, PAGES>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
    if (e != cudaSuccess) return e;
    attention_sm90_kernel<D, HEADS, PAGES><<<grid, S::THREADS, S::BYTES, (cudaStream_t)stream>>>(job);
    return cudaGetLastError();
}

/* Heads in pairs read keys half as often, but leave half as many blocks. Both take a page a step, so that a row's
 * result does not depend on which of them runs. */
cudaError_t launch_64(const nmlp_cuda_attention_sm90 &job, void *stream) {
    const bool shared = job.n_heads / job.n_kv_heads % 2 == 0;
    if (!shared) return launch<64, 1, 2>(job, stream);
    if (job.n_heads / 2 * job.n_tiles < job.n_multiprocessors) return launch<64, 1, 1>(job, stream);
    return launch<64, 2, 1>(job, stream);
}

} // namespace

int nmlp_cuda_attention_has_sm90(int32_t head_dim) {
    cudaFuncAttributes found;
    return (head_dim == 64 || head_dim == 128) &&
           cudaFuncGetAttributes(&found, (const void *)attention_sm90_kernel<64, 2, 1>) == cudaSuccess &&
           found.ptxVersion >= 90 && found.binaryVersion >= 90;
}

int nmlp_cuda_attention_sm90_launch(const nmlp_cuda_attention_sm90 *job, void *stream) {
    if (job->n_tiles == 0) return cudaSuccess;
    return job->head_dim == 64 ? launch_64(*job, stream) : launch<128, 1, 2>(*job, stream);
}
