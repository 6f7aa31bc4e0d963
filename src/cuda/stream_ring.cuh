/* The ring of weight slots between the copying warp and the multiplying warps: mbarriers and asynchronous copies. Hopper copies whole
 * rows with its bulk engine; older chips copy 16 bytes per lane. */
#ifndef NMLP_CUDA_STREAM_RING_CUH
#define NMLP_CUDA_STREAM_RING_CUH

#include <cstdint>
#include <cuda_bf16.h>

#include "cuda/program.h"

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
                     : "=r"(done) : "r"(shared_address(bar)), "r"(parity) : "memory");
#else
        /* Without the parity form of Hopper-class PTX: the phase is tested by parity all the same (PTX 7.1). */
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_address(bar)), "r"(parity) : "memory");
#endif
    }
}

/* A whole warp is done with something. One lane says so for all; racecheck only understands each lane speaking for itself, so checking builds define
 * NMLP_CUDA_RACECHECK. */
#ifdef NMLP_CUDA_RACECHECK
#define WARP_ARRIVALS 32
#else
#define WARP_ARRIVALS 1
#endif

__device__ __forceinline__ void warp_arrive(uint64_t *bar) {
    __syncwarp();
    if (WARP_ARRIVALS == 32 || (threadIdx.x & 31) == 0) mbar_arrive(bar);
}

/* Arrivals that complete a full barrier: one expecting lane, or all lanes of the copying warp. */
#if __CUDA_ARCH__ >= 900
#define FULL_ARRIVALS 1
#else
#define FULL_ARRIVALS 32
#endif

/* Lane `lane` of the copying warp fills a slot with `rows` rows of `cols` columns (a multiple of 64); rows are `pitch` apart in memory and
 * cols + skew apart in the slot. */
__device__ __forceinline__ void fill_slot(__nv_bfloat16 *slot, uint64_t *full, const __nv_bfloat16 *src, int rows, int cols,
                                          int pitch, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)),
                     "r"((uint32_t)(rows * cols * 2)) : "memory");
    __syncwarp();
    if (lane < rows)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(slot + lane * (cols + NMLP_CUDA_ROW_SKEW))),
                     "l"(src + (int64_t)lane * pitch), "r"(cols * 2), "r"(shared_address(full)) : "memory");
#else
    int per_row = cols / 8;
    for (int i = lane; i < rows * per_row; i += 32) {
        int row = i / per_row;
        int col = (i - row * per_row) * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         shared_address(slot + row * (cols + NMLP_CUDA_ROW_SKEW) + col)),
                     "l"(src + (int64_t)row * pitch + col) : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
}

/* Position in the ring; both sides walk it in the same order. */
struct ring_cursor {
    int slot;
    uint32_t parity;
    __device__ void advance(int n_slots) {
        if (++slot == n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

#endif
