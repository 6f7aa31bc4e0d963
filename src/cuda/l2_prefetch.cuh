/* Asking L2 for what the next kernel reads, while the memory has nothing else to do. Nothing waits for it. */
#ifndef NMLP_CUDA_L2_PREFETCH_CUH
#define NMLP_CUDA_L2_PREFETCH_CUH

#include <cstdint>

/* `bytes`: a multiple of 16. */
__device__ __forceinline__ void prefetch_bytes(const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
    (void)from;
    (void)bytes;
#endif
}

/* Share `i` of `n` of them. One thread. */
__device__ __forceinline__ void prefetch_share(const void *from, int64_t bytes, int i, int n) {
    const int64_t PIECE = 8192;
    const int64_t per = (bytes / 128 + n - 1) / n * 128;
    const int64_t end = min(bytes, (i + 1) * per);
    for (int64_t at = i * per; at < end; at += PIECE)
        prefetch_bytes(static_cast<const char *>(from) + at, (uint32_t)min(PIECE, end - at));
}

#endif
