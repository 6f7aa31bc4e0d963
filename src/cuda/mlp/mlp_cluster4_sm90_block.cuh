/* What the warps of a block of mlp_cluster4_sm90.cu share: its shared memory, its tile of a GEMM, and stores
 * between blocks of a cluster. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_BLOCK_CUH
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_BLOCK_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/mlp/mlp_cluster4_sm90.h"
#include "cuda/decode/decode_ring.cuh"
#include "cuda/residual.cuh"
#include "cuda/sm90.cuh"

namespace {

enum {
    CLUSTER = NMLP_CUDA_MLP_CLUSTER4_BLOCKS,
    WARPS = NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS,
    PRODUCER_WARPS = NMLP_CUDA_MLP_CLUSTER4_PRODUCER_WARPS,
    THREADS = (WARPS + PRODUCER_WARPS) * 32,
    N8 = NMLP_CUDA_MLP_CLUSTER4_N8,
    COLS = NMLP_CUDA_MLP_CLUSTER4_COLS,
    N8_BYTES = N8 * COLS * 2, /* of a stage */
    X_SKEW_BYTES = NMLP_CUDA_MLP_CLUSTER4_X_SKEW_BYTES
};

const uint32_t unwritten = 0xffffffffu; /* two bf16 NaNs that arithmetic does not make */

/* NT times 8 tokens. */
template <int NT> struct shape {
    static const int tokens = NT * 8;
    static const int tiles = (NT + 1) / 2; /* of 16 tokens: m of the mma */
    static const int n8_max = NMLP_CUDA_MLP_CLUSTER4_N8_MAX;
    static const int n8_bytes = NT * 8 * N8 * 4;   /* of sums */
    static const int m16_bytes = n8_bytes / tiles; /* of one tile */
};

struct shared_head {
    uint64_t full[NMLP_CUDA_MLP_CLUSTER4_STAGES_MAX];
    uint64_t empty[NMLP_CUDA_MLP_CLUSTER4_STAGES_MAX];
    uint64_t sums_full; /* of all blocks of the cluster */
    uint64_t sums_free; /* all blocks have read theirs */
    uint64_t act_full;
    uint32_t launch;
    float scales[32]; /* of the input's rows */
};

struct block_memory {
    shared_head *sh;
    unsigned char *sums; /* [n8 tiles of mine][sources][n8_bytes] */
    unsigned char *x;    /* [tokens][the block's columns of both factors, skew] */
    unsigned char *act;  /* [tokens][act_pitch]: the part's rows of X */
    unsigned char *ring;
    int rank; /* in the cluster */
    int cluster;
};

/* What is known before words or weights arrive is made ready by then: the compiler would leave it for later, and
 * reading arguments takes long. */
__device__ __forceinline__ void keep_in_register(int &v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void keep_in_register(uint32_t &v) { asm volatile("" : "+r"(v)); }

/* What a block does in one pass of a product. */
struct block_tile {
    int row;   /* first of W */
    int end;   /* of the rows */
    int block; /* first of 64 columns */
    int n_blocks;
    int column; /* the first */
    bool live;  /* the cluster has such rows */
};

__device__ __forceinline__ block_tile tile_of_pass(const nmlp_cuda_mlp_cluster4_program &prog,
                                                   const nmlp_cuda_mlp_cluster4_product &ph, const block_memory &mem,
                                                   int pass) {
    block_tile p;
    if (ph.kind == NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K) {
        p.row = (pass * CLUSTER + mem.rank) * WARPS * ph.stage_n8 * N8;
        p.end = ph.rows;
        p.block = 0;
        p.live = mem.cluster < prog.n_sources;
        p.n_blocks = p.live ? ph.blocks : 0;
        p.column = mem.cluster * prog.window;
    } else {
        const int first = mem.cluster * ph.cluster_rows;
        p.row = first + ((pass * ph.stage_n8 * N8) << ph.row_shift);
        p.end = min(ph.rows, first + ph.cluster_rows);
        p.block = ph.blocks * mem.rank / CLUSTER;
        p.live = p.row < p.end;
        p.n_blocks = p.live ? ph.blocks * (mem.rank + 1) / CLUSTER - p.block : 0;
        p.column = p.block * COLS;
    }
    return p;
}

/* Octets of a stage that begins at `row`. */
__device__ __forceinline__ int n8_at(const nmlp_cuda_mlp_cluster4_product &ph, const block_tile &p, int row) {
    return max(0, min(ph.stage_n8, (p.end - row) / N8));
}

/* Places in the ring that a pass takes: one per consumer warp, as often as it takes. Where K ends within a round the
 * last ones are filled with nothing. */
__device__ __forceinline__ int n_places(const nmlp_cuda_mlp_cluster4_product &ph, const block_tile &p) {
    return ((p.n_blocks << ph.side_shift) + WARPS - 1) / WARPS * WARPS;
}

/* Stages belong to warps, so that a warp that waits for one has read what was in it before: of all stages an eighth
 * each, and the first warps one more where that leaves some. */
struct stage_range {
    int first;
    int n;
};

__device__ __forceinline__ stage_range stages_of(int n_stages, int warp) {
    const int n = n_stages / WARPS;
    const int more = n_stages % WARPS;
    return {warp * n + min(warp, more), n + (warp < more ? 1 : 0)};
}

__device__ __forceinline__ void send(uint32_t to, uint32_t bar, float a, float b) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(bar)
                 : "memory");
}

__device__ __forceinline__ void send(uint32_t to, uint32_t bar, uint4 v) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(bar)
        : "memory");
}

__device__ __forceinline__ void expect_bytes(uint64_t *bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void consumer_sync() {
    asm volatile("bar.sync 1, 256;" ::: "memory");
    static_assert(WARPS == 8, "the barrier counts threads");
}

/* Before a warp writes where others have read: they have sent what they made of it, and it has waited for that.
 * racecheck does not follow such messages, so checking builds meet here. */
__device__ __forceinline__ void after_readers() {
#ifdef NMLP_CUDA_RACECHECK
    consumer_sync();
#endif
}

} // namespace

#endif
