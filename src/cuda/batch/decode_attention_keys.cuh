/* What a block of decode_attention_paged.cu takes of a step, and how its keys and values come: through a ring in shared
 * memory in which every thread has slots of its own. It copies what it reads itself, so nobody waits for another's
 * copies. */
#ifndef NMLP_CUDA_BATCH_DECODE_ATTENTION_KEYS_CUH
#define NMLP_CUDA_BATCH_DECODE_ATTENTION_KEYS_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/batch/batch_kernels.h"
#include "cuda/batch/decode_attention_softmax.cuh"
#include "cuda/l2_prefetch.cuh"
#include "cuda/layout.h"

namespace {

enum {
    WARPS = 8,
    THREADS = WARPS * 32,
    BLOCKS_PER_SM = 2,
    HEADS_FEW = 2, /* of a block, where there are not enough blocks for all multiprocessors */
    HEADS_MANY = 4,
    PAGE = NMLP_CUDA_PAGE_POSITIONS,
    SLOT_BYTES = THREADS * 16, /* 16 bytes of every thread */
    STAGE_BYTES = 2 * UNROLL * SLOT_BYTES
};

template <int LANES, int HEADS> struct shape {
    enum {
        GROUPS = 32 / LANES, /* keys of one load of a warp */
        WARP_KEYS = GROUPS * UNROLL,
        ROUND = WARPS * WARP_KEYS, /* keys that the block adds at once */
        DIM = LANES * COLS,        /* at most */
        PAIRS = (DIM + 63) / 64,   /* of a lane, where a warp has a head */
        /* Beside a block with W of gemm_resident_sm90.h for as many rows as there then are. */
        STAGES = HEADS == HEADS_FEW ? 4 : 3,
        RING_BYTES = STAGES * STAGE_BYTES
    };
    static_assert(PAGE % WARP_KEYS == 0, "what a warp adds at once is of one page");
};

__host__ __device__ __forceinline__ int head_groups(int n_heads, int n_kv_heads, int heads) {
    return (n_heads / n_kv_heads + heads - 1) / heads;
}

/* Which keys a block takes. */
struct key_range {
    int n_chunks; /* of the row */
    int begin;
    int end;
};

__device__ __forceinline__ key_range range_of(int n_keys, int chunk) {
    const int even = (n_keys + NMLP_CUDA_ATTENTION_CHUNKS_MAX - 1) / NMLP_CUDA_ATTENTION_CHUNKS_MAX;
    const int keys = max((int)NMLP_CUDA_ATTENTION_CHUNK, (even + PAGE - 1) / PAGE * PAGE);
    return {(n_keys + keys - 1) / keys, chunk * keys, min(n_keys, (chunk + 1) * keys)};
}

/* What a block takes of a step: a row, some query heads of a kv head, a chunk of keys. */
struct attention_unit {
    bool live;
    int row;
    int position; /* of the row */
    int group;    /* kv head and group of its query heads */
    int n_groups; /* of all kv heads */
    int kv_head;
    int in_group; /* first query head, of those of the kv head */
    int head;     /* the same, of all */
    int n_heads;
    int chunk;
    key_range range;
    int cached_end;       /* keys before it are in the pages */
    const int32_t *table; /* of the sequence */
};

/* Past L1, which may still have what an earlier step left there. */
template <int HEADS> __device__ __forceinline__ attention_unit take_unit(const nmlp_cuda_paged_attention &a) {
    const int sequence = __ldcg(a.rows.sequence + blockIdx.x);
    const int position = __ldcg(a.rows.position + blockIdx.x);
    const int per_kv = a.n_heads / a.n_kv_heads;
    const int groups = head_groups(a.n_heads, a.n_kv_heads, HEADS);
    attention_unit unit;
    unit.row = (int)blockIdx.x;
    unit.position = position;
    unit.group = (int)blockIdx.y;
    unit.n_groups = a.n_kv_heads * groups;
    unit.kv_head = unit.group / groups;
    unit.in_group = unit.group % groups * HEADS;
    unit.head = unit.kv_head * per_kv + unit.in_group;
    unit.n_heads = min(HEADS, per_kv - unit.in_group);
    unit.chunk = (int)blockIdx.z;
    unit.range = range_of(position + 1, unit.chunk);
    unit.cached_end = a.appends ? min(unit.range.end, position) : unit.range.end;
    unit.table = a.tables + (int64_t)sequence * a.table_pages;
    unit.live = sequence >= 0 && unit.chunk < unit.range.n_chunks;
    return unit;
}

/* Volatile: loads of page numbers stay before the copies that come after them, so they are under way together. */
__device__ __forceinline__ int page_of(const attention_unit &unit, int key) {
    int page;
    asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(page) : "l"(unit.table + key / PAGE) : "memory");
    return page;
}

/* Nothing is read of `from`, and zeros are written, where `there` is false. */
__device__ __forceinline__ void copy_16_bytes(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ __forceinline__ void end_round() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most N rounds of this thread are under way. */
template <int N> __device__ __forceinline__ void await_round() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* What a thread reads: LANES of them have a key, `col` is the first column of each. */
template <int LANES, int HEADS> struct key_ring {
    typedef shape<LANES, HEADS> S;
    const __nv_bfloat16 *keys; /* page 0, this group's first key, col */
    const __nv_bfloat16 *values;
    unsigned char *slots; /* this thread's, of the first stage */
    int64_t page_elems;
    int dim;
    int group;
    int col;
    int first;     /* key of the warp */
    int next_page; /* of the warp's next round to be requested */

    __device__ __forceinline__ bool has_cols() const { return col < dim; }

    /* Of the last key, where there is none at `base`. */
    __device__ __forceinline__ int page_at(const attention_unit &unit, int base) const {
        return page_of(unit, min(base, unit.position));
    }

    __device__ __forceinline__ void request(const attention_unit &unit, int stage, int base, int page) const {
        const int64_t at = page * page_elems + base % PAGE * dim;
        const uint32_t to = (uint32_t)__cvta_generic_to_shared(slots) + stage * STAGE_BYTES;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const bool there = has_cols() && base + u * S::GROUPS + group < unit.cached_end;
            copy_16_bytes(to + 2 * u * SLOT_BYTES, keys + at + u * S::GROUPS * dim, there);
            copy_16_bytes(to + (2 * u + 1) * SLOT_BYTES, values + at + u * S::GROUPS * dim, there);
        }
    }

    /* The first rounds. */
    __device__ __forceinline__ void begin(const nmlp_cuda_paged_attention &a, const attention_unit &unit,
                                          unsigned char *memory) {
        const int lane = threadIdx.x & 31;
        dim = a.head_dim;
        group = lane / LANES;
        col = lane % LANES * COLS;
        slots = memory + threadIdx.x * 16;
        page_elems = (int64_t)a.n_kv_heads * PAGE * dim;
        const int64_t at = ((int64_t)unit.kv_head * PAGE + group) * dim + col;
        keys = static_cast<const __nv_bfloat16 *>(a.k_pages) + at;
        values = static_cast<const __nv_bfloat16 *>(a.v_pages) + at;
        first = unit.range.begin + (int)(threadIdx.x >> 5) * S::WARP_KEYS;
        int page[S::STAGES + 1];
#pragma unroll
        for (int i = 0; i <= S::STAGES; i++) page[i] = page_at(unit, first + i * S::ROUND);
#pragma unroll
        for (int i = 0; i < S::STAGES; i++) {
            request(unit, i, first + i * S::ROUND, page[i]);
            end_round();
        }
        next_page = page[S::STAGES];
    }

    /* `base`: the round that has been read from there. */
    __device__ __forceinline__ void refill(const attention_unit &unit, int stage, int base) {
        const int next = base + S::STAGES * S::ROUND;
        if (next < unit.range.end) {
            request(unit, stage, next, next_page);
            next_page = page_at(unit, next + S::ROUND);
        }
        end_round();
    }

    __device__ __forceinline__ const uint4 *slot(int stage, int of) const {
        return reinterpret_cast<const uint4 *>(slots + stage * STAGE_BYTES + of * SLOT_BYTES);
    }
};

/* Every thread asks L2 for the part of a page of keys, or of values, that comes after the ring's first rounds. */
template <int LANES, int HEADS>
__device__ __forceinline__ void ask_for_more(const nmlp_cuda_paged_attention &a, const attention_unit &unit) {
    typedef shape<LANES, HEADS> S;
    const int begin = unit.range.begin + (int)S::STAGES * S::ROUND;
    const int first = (begin / PAGE + (int)threadIdx.x / 2) * PAGE;
    if (!a.asks_early || first >= unit.cached_end) return;
    const int64_t at = ((int64_t)page_of(unit, first) * a.n_kv_heads + unit.kv_head) * PAGE * a.head_dim;
    const void *pages = threadIdx.x % 2 ? a.v_pages : a.k_pages;
    prefetch_bytes(static_cast<const __nv_bfloat16 *>(pages) + at,
                   (uint32_t)(min((int)PAGE, unit.cached_end - first) * a.head_dim * 2));
}

} // namespace

#endif
