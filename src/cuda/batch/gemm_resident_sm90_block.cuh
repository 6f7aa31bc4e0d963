/* What the warps of a block of gemm_resident_sm90.cu share: its shared memory and what is requested into it. */
#ifndef NMLP_CUDA_BATCH_GEMM_RESIDENT_SM90_BLOCK_CUH
#define NMLP_CUDA_BATCH_GEMM_RESIDENT_SM90_BLOCK_CUH

#include <cuda_runtime.h>

#include "cuda/batch/gemm_resident_sm90.h"
#include "cuda/residual.cuh"
#include "cuda/sm90.cuh"

namespace {

enum {
    CLUSTER = NMLP_CUDA_GEMM_RESIDENT_BLOCKS,
    WARPS = 8,
    THREADS = WARPS * 32,
    N8 = NMLP_CUDA_GEMM_RESIDENT_N8,
    COLS = NMLP_CUDA_GEMM_RESIDENT_COLS,
    ROW_BYTES = COLS * 2, /* of a slab */
    N8_BYTES = N8 * ROW_BYTES,
    M16_SUM_BYTES = 32 * 16, /* sums of 16 tokens and an n8 tile, as the lanes have them */
    HEAD_BYTES = 1024
};

struct shared_head {
    uint64_t w_full[WARPS];
    uint64_t x_full[WARPS];
    uint64_t sums_full; /* the other block's */
    float scales[32];   /* of rows */
};
static_assert(sizeof(shared_head) <= HEAD_BYTES, "the head has its place");

/* NT times 8 tokens. */
template <int NT> struct shape {
    static const int tokens = NT * 8;
    static const int tiles = (NT + 1) / 2; /* of 16 tokens: m of the mma */
    static const int slab_bytes = tokens * ROW_BYTES;
    static const int n8_sum_bytes = tiles * M16_SUM_BYTES;
};

__host__ __device__ inline int most_slabs(int n_slabs) { return (n_slabs + CLUSTER - 1) / CLUSTER; }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using sm90::shared_address;

/* What a block has: slab i of it is of columns (first + i) * 64 and belongs to warp i modulo WARPS. */
struct block_memory {
    shared_head *sh;
    unsigned char *w;        /* [slabs][rows of W]; then, in each warp's first slab, its sums */
    unsigned char *x;        /* [slabs][tokens] */
    unsigned char *received; /* [n8 tiles of this block]: sums of the other block */
    int rank;
    int row; /* first of W */
    int first;
    int n;
};

template <int NT, int N8_TILES>
__device__ __forceinline__ block_memory lay_out(const nmlp_cuda_gemm_resident &g, unsigned char *memory) {
    block_memory mem;
    mem.sh = reinterpret_cast<shared_head *>(memory);
    mem.w = memory + HEAD_BYTES;
    mem.x = mem.w + most_slabs(g.n_slabs) * N8_TILES * N8_BYTES;
    mem.received = mem.x + most_slabs(g.n_slabs) * shape<NT>::slab_bytes;
    mem.rank = (int)blockIdx.x % CLUSTER;
    mem.row = (int)blockIdx.x / CLUSTER * N8_TILES * N8;
    mem.first = g.n_slabs * mem.rank / CLUSTER;
    mem.n = g.n_slabs * (mem.rank + 1) / CLUSTER - mem.first;
    return mem;
}

__device__ __forceinline__ int slabs_of_warp(const block_memory &mem) {
    const int warp = threadIdx.x >> 5;
    return warp < mem.n ? (mem.n - warp + WARPS - 1) / WARPS : 0;
}

/* One lane of every warp. */
template <int N8_TILES>
__device__ __forceinline__ void request_w(const nmlp_cuda_gemm_resident &g, const block_memory &mem) {
    const int warp = threadIdx.x >> 5;
    const uint32_t full = shared_address(&mem.sh->w_full[warp]);
    sm90::mbar_expect(full, slabs_of_warp(mem) * N8_TILES * N8_BYTES);
    for (int i = warp; i < mem.n; i += WARPS)
        sm90::load_box_once(shared_address(mem.w + i * N8_TILES * N8_BYTES), g.w_map, (mem.first + i) * COLS, mem.row,
                            full);
}

template <int NT> __device__ __forceinline__ void request_x(const nmlp_cuda_gemm_resident &g, const block_memory &mem) {
    const int warp = threadIdx.x >> 5;
    const uint32_t full = shared_address(&mem.sh->x_full[warp]);
    sm90::mbar_expect(full, slabs_of_warp(mem) * shape<NT>::slab_bytes);
    for (int i = warp; i < mem.n; i += WARPS)
        sm90::load_box(shared_address(mem.x + i * shape<NT>::slab_bytes), g.x_map, (mem.first + i) * COLS, 0, full);
}

/* One lane of every warp: its barriers, and of the first one that of the other block's sums. */
__device__ __forceinline__ void init_barriers(const block_memory &mem, int received_bytes) {
    const int warp = threadIdx.x >> 5;
    sm90::mbar_init(shared_address(&mem.sh->w_full[warp]), 1);
    sm90::mbar_init(shared_address(&mem.sh->x_full[warp]), 1);
    if (warp == 0) sm90::mbar_init(shared_address(&mem.sh->sums_full), 1);
    sm90::fence_barrier_init();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (warp == 0) sm90::mbar_expect(shared_address(&mem.sh->sums_full), received_bytes);
}

#endif

} // namespace

#endif
