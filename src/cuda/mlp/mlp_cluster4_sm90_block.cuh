/* What the warps of a block of quad.cu share: its shared memory, its part of a product, words between blocks of a
 * cluster. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_BLOCK_CUH
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_BLOCK_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/mlp/mlp_cluster4_sm90.h"
#include "cuda/decode/decode_ring.cuh"

namespace {

enum {
    QUAD = NMLP_CUDA_QUAD_BLOCKS,
    WARPS = NMLP_CUDA_QUAD_WARPS,
    COPIERS = NMLP_CUDA_QUAD_COPIERS,
    THREADS = (WARPS + COPIERS) * 32,
    OCTET = NMLP_CUDA_QUAD_OCTET,
    COLS = NMLP_CUDA_QUAD_COLS,
    OCTET_BYTES = OCTET * COLS * 2, /* of a slot */
    X_SKEW_BYTES = NMLP_CUDA_QUAD_X_SKEW_BYTES
};

const uint32_t unwritten = 0xffffffffu; /* two bf16 NaNs that arithmetic does not make */

/* NT times 8 tokens. */
template <int NT> struct shape {
    static const int tokens = NT * 8;
    static const int tiles = (NT + 1) / 2; /* of 16 tokens: m of the mma */
    static const int octets_max = NMLP_CUDA_QUAD_OCTETS_MAX;
    static const int octet_bytes = NT * 8 * OCTET * 4;  /* of sums */
    static const int piece_bytes = octet_bytes / tiles; /* of one tile */
};

struct shared_head {
    uint64_t full[NMLP_CUDA_QUAD_SLOTS_MAX];
    uint64_t empty[NMLP_CUDA_QUAD_SLOTS_MAX];
    uint64_t sums_full; /* of all blocks of the cluster */
    uint64_t sums_free; /* all blocks have read theirs */
    uint64_t act_full;
    uint32_t launch;
};

struct block_memory {
    shared_head *sh;
    unsigned char *sums; /* [octets of mine][sources][octet_bytes] */
    unsigned char *x;    /* [tokens][the block's columns of both factors, skew] */
    unsigned char *act;  /* [tokens][act_pitch]: the part's rows of X */
    unsigned char *ring;
    int rank; /* in the cluster */
    int cluster;
};

/* What is known before words or weights arrive is made ready by then: the compiler would leave it for later, and
 * reading arguments takes long. */
__device__ __forceinline__ void make_ready(int &v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void make_ready(uint32_t &v) { asm volatile("" : "+r"(v)); }

/* What a block does in one pass of a product. */
struct part {
    int row;   /* first of W */
    int end;   /* of the rows */
    int block; /* first of 64 columns */
    int n_blocks;
    int column; /* the first */
    bool live;  /* the cluster has such rows */
};

__device__ __forceinline__ part part_of(const nmlp_cuda_quad_program &prog, const nmlp_cuda_quad_product &ph,
                                        const block_memory &mem, int pass) {
    part p;
    if (ph.kind == NMLP_CUDA_QUAD_PART) {
        p.row = (pass * QUAD + mem.rank) * WARPS * ph.slot_octets * OCTET;
        p.end = ph.rows;
        p.block = 0;
        p.live = mem.cluster < prog.n_sources;
        p.n_blocks = p.live ? ph.blocks : 0;
        p.column = mem.cluster * prog.window;
    } else {
        const int first = mem.cluster * ph.cluster_rows;
        p.row = first + ((pass * ph.slot_octets * OCTET) << ph.row_shift);
        p.end = min(ph.rows, first + ph.cluster_rows);
        p.block = ph.blocks * mem.rank / QUAD;
        p.live = p.row < p.end;
        p.n_blocks = p.live ? ph.blocks * (mem.rank + 1) / QUAD - p.block : 0;
        p.column = p.block * COLS;
    }
    return p;
}

/* Octets of a slot that begins at `row`. */
__device__ __forceinline__ int octets_at(const nmlp_cuda_quad_product &ph, const part &p, int row) {
    return max(0, min(ph.slot_octets, (p.end - row) / OCTET));
}

/* Places in the ring that a pass takes: one per multiplying warp, as often as it takes. Where K ends within a round the
 * last ones are filled with nothing. */
__device__ __forceinline__ int n_places(const nmlp_cuda_quad_product &ph, const part &p) {
    return ((p.n_blocks << ph.side_shift) + WARPS - 1) / WARPS * WARPS;
}

/* Slots belong to warps, so that a warp that waits for one has read what was in it before: of all slots an eighth each,
 * and the first warps one more where that leaves some. */
struct slot_range {
    int first;
    int n;
};

__device__ __forceinline__ slot_range slots_of(int n_slots, int warp) {
    const int n = n_slots / WARPS;
    const int more = n_slots % WARPS;
    return {warp * n + min(warp, more), n + (warp < more ? 1 : 0)};
}

__device__ __forceinline__ uint32_t in_block(uint32_t address, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
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

__device__ __forceinline__ void multipliers_sync() {
    asm volatile("bar.sync 1, 256;" ::: "memory");
    static_assert(WARPS == 8, "the barrier counts threads");
}

/* Before a warp writes where others have read: they have sent what they made of it, and it has waited for that.
 * racecheck does not follow such messages, so checking builds meet here. */
__device__ __forceinline__ void after_readers() {
#ifdef NMLP_CUDA_RACECHECK
    multipliers_sync();
#endif
}

} // namespace

#endif
