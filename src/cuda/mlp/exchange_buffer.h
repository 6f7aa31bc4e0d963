/* Places in what blocks hand each other in one launch. There are two such sets; offsets into one stand for pointers
 * until the first one's place is known. */
#ifndef NMLP_CUDA_MLP_EXCHANGE_BUFFER_H
#define NMLP_CUDA_MLP_EXCHANGE_BUFFER_H

#include <stdint.h>

enum { NMLP_CUDA_SET_ALIGN_BYTES = 256 };

static inline void *nmlp_cuda_set_take(int64_t *used, int64_t bytes) {
    int64_t at = *used;
    *used += (bytes + NMLP_CUDA_SET_ALIGN_BYTES - 1) / NMLP_CUDA_SET_ALIGN_BYTES * NMLP_CUDA_SET_ALIGN_BYTES;
    return (void *)(uintptr_t)at;
}

static inline void *nmlp_cuda_set_moved(const void *offset, const char *base) {
    return (void *)(uintptr_t)(base + (uintptr_t)offset);
}

#endif
