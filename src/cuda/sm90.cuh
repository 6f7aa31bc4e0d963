/* Hopper's instructions that several kernels use: mbarriers by shared address, boxes copied by TMA, clusters, and the
 * frame of wgmma. Code that includes this stands behind __CUDA_ARCH_FEAT_SM90_ALL. */
#ifndef NMLP_CUDA_SM90_CUH
#define NMLP_CUDA_SM90_CUH

#include <cstdint>

namespace sm90 {

enum { SWIZZLE_BYTES = 128, SWIZZLE_ROWS = 8 }; /* a pattern repeats every 8 rows of 128 bytes */

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* One arrival, and the phase ends when that many bytes have come. */
__device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
}

/* Barriers that a thread has made ready, to TMA and to other blocks of a cluster. */
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void load_box(uint32_t to, const void *map, int col, int row, uint32_t full) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
                 "%3}], [%4];" ::"r"(to),
                 "l"(map), "r"(col), "r"(row), "r"(full)
                 : "memory");
}

/* The same for what is read once, which leaves L2 first. */
__device__ __forceinline__ void load_box_once(uint32_t to, const void *map, int col, int row, uint32_t full) {
    const uint64_t EVICT_FIRST = 0x12F0000000000000ull; /* what createpolicy makes of L2::evict_first */
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(col), "r"(row), "r"(full), "l"(EVICT_FIRST)
                 : "memory");
}

__device__ __forceinline__ void prefetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* What is at `address` in this block, in block `rank` of the cluster. */
__device__ __forceinline__ uint32_t mapa(uint32_t address, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

/* Relaxed: barriers are made visible by a fence of their own, and nothing else is handed over; a release would be a
 * fence of the whole chip. */
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/* A matrix in rows of 128 bytes, swizzled as TMA does. Where the rows are those of the product's inner dimension (an
 * operand transposed), further columns lie `block_bytes` apart. */
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t block_bytes = 16) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(block_bytes >> 4) << 16 |
           (uint64_t)(SWIZZLE_ROWS * SWIZZLE_BYTES >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Until at most N committed groups are under way. */
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Reads of these sums stay behind the wait before it: the compiler does not know that products write them late. */
template <int N> __device__ __forceinline__ void wgmma_results(float (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}

} // namespace sm90

#endif
