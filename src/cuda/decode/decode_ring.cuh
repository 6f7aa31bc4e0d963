/* The ring buffer of weight tiles between producer and consumer warps: full and empty mbarriers and asynchronous
 * copies. Hopper loads a tile with one TMA instruction; older chips copy 16 bytes per lane (cp.async). */
#ifndef NMLP_CUDA_DECODE_DECODE_RING_CUH
#define NMLP_CUDA_DECODE_DECODE_RING_CUH

#include <cstdint>
#include <cuda_bf16.h>

#include "cuda/decode/decode_program.h"

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mbar_init(uint64_t *bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}

__device__ __forceinline__ void mbar_arrive(uint64_t *bar) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(shared_address(bar)) : "memory");
}

__device__ __forceinline__ void mbar_wait(uint64_t *bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(bar)), "r"(parity)
                     : "memory");
#else
        /* Without the parity form of Hopper-class PTX: the phase is tested by parity all the same (PTX 7.1). */
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(bar)), "r"(parity)
                     : "memory");
#endif
    }
}

/* The same without waiting. */
__device__ __forceinline__ bool mbar_test(uint64_t *bar, uint32_t parity) {
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(bar)), "r"(parity)
                 : "memory");
    return done;
}

/* For all lanes of a warp, which ask together. */
__device__ __forceinline__ bool mbar_is_done(uint64_t *bar, uint32_t parity) {
    return __all_sync(0xffffffffu, mbar_test(bar, parity));
}

/* A whole warp is done with something. One lane says so for all; racecheck only understands each lane speaking for
 * itself, so checking builds define NMLP_CUDA_RACECHECK. */
#ifdef NMLP_CUDA_RACECHECK
#define WARP_ARRIVALS 32
#else
#define WARP_ARRIVALS 1
#endif

__device__ __forceinline__ void warp_arrive(uint64_t *bar) {
    __syncwarp();
    if (WARP_ARRIVALS == 32 || (threadIdx.x & 31) == 0) mbar_arrive(bar);
}

/* Arrivals that complete a full barrier: one expecting lane, or all lanes of the producer warp. */
#if __CUDA_ARCH__ >= 900
#define FULL_ARRIVALS 1
#else
#define FULL_ARRIVALS 32
#endif

/* Barriers that a thread has made ready, to TMA and to other blocks of a cluster. */
__device__ __forceinline__ void fence_barrier_init() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* Barriers are made ready one at a time, each with a fence: lanes would take turns, so the warps of a block share them.
 * They meet afterwards. */
__device__ __forceinline__ void init_ring(uint64_t *full, uint64_t *empty, int n_stages, int n_warps) {
    if ((threadIdx.x & 31) != 0) return;
#pragma unroll 1
    for (int i = threadIdx.x >> 5; i < n_stages; i += n_warps) {
        mbar_init(&full[i], FULL_ARRIVALS);
        mbar_init(&empty[i], WARP_ARRIVALS);
    }
    fence_barrier_init();
}

/* A tile of a matrix [n, pitch]. */
struct tile_source {
    const void *map;
    const __nv_bfloat16 *data;
    int pitch;
    int row;
    int rows; /* that exist */
    int col;
    int cols; /* a multiple of 64 */
};

/* The description of a matrix starts for TMA. */
__device__ __forceinline__ void prefetch_map(const void *map) {
#if __CUDA_ARCH__ >= 900
    if (map) asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#else
    (void)map;
#endif
}

/* Columns that lie together in a stage: [blocks of columns][16 rows][64 columns], and within a row of 128 bytes the 16
 * bytes c of row r stand at place c ^ (r mod 8), so that eight rows of the same columns meet all banks. Stages start on
 * multiples of STAGE_ALIGN_BYTES, as TMA requires. */
enum { TILE_BLOCK = 64, STAGE_ALIGN_BYTES = 1024 };

/* What createpolicy makes of L2::evict_first. */
const uint64_t EVICT_FIRST = 0x12F0000000000000ull;

/* The producer warp fills a stage. KEEPS_OTHERS: weights leave L2 first; what else is there (keys, norms, descriptions
 * of phases) is what a decode step waits for. */
template <bool KEEPS_OTHERS = false>
__device__ __forceinline__ void fill_stage(__nv_bfloat16 *stage, uint64_t *full, const tile_source &from, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane != 0) return;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)),
                 "r"(NMLP_CUDA_DECODE_TILE_ROWS * NMLP_CUDA_DECODE_TILE_COLS * 2)
                 : "memory");
    if (KEEPS_OTHERS)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(stage)),
                     "l"(from.map), "r"(0), "r"(from.row), "r"(from.col / TILE_BLOCK), "r"(shared_address(full)),
                     "l"(EVICT_FIRST)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
                     "%3, %4}], [%5];" ::"r"(shared_address(stage)),
                     "l"(from.map), "r"(0), "r"(from.row), "r"(from.col / TILE_BLOCK), "r"(shared_address(full))
                     : "memory");
#else
    int per_row = from.cols / 8;
    for (int i = lane; i < from.rows * per_row; i += 32) {
        int row = i / per_row;
        int col = (i - row * per_row) * 8;
        int at = (col / TILE_BLOCK * NMLP_CUDA_DECODE_TILE_ROWS + row) * TILE_BLOCK + ((col / 8 ^ row) & 7) * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(stage + at)),
                     "l"(from.data + (int64_t)(from.row + row) * from.pitch + from.col + col)
                     : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
}

/* The same from `bytes` in one piece, a multiple of 16. */
__device__ __forceinline__ void fill_stage_flat(__nv_bfloat16 *stage, uint64_t *full, const void *from, int bytes,
                                                int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane != 0) return;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(shared_address(stage)),
                 "l"(from), "r"(bytes), "r"(shared_address(full)), "l"(EVICT_FIRST)
                 : "memory");
#else
    for (int at = lane * 16; at < bytes; at += 32 * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(stage) + at),
                     "l"(static_cast<const char *>(from) + at)
                     : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
}

/* A stage is passed on with nothing in it. */
__device__ __forceinline__ void fill_stage_empty(uint64_t *full, int lane) {
    if (FULL_ARRIVALS == 32 || lane == 0) mbar_arrive(full);
}

/* Position in the ring; both sides walk it in the same order. */
struct ring_cursor {
    int stage;
    uint32_t parity;
    __device__ void advance(int by, int n_stages) {
        stage += by;
        if (stage >= n_stages) {
            stage -= n_stages;
            parity ^= 1;
        }
    }
    /* By any number. */
    __device__ void advance_far(int by, int n_stages) {
        stage += by;
        while (stage >= n_stages) {
            stage -= n_stages;
            parity ^= 1;
        }
    }
};

#endif
