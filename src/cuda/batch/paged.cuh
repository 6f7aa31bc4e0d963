/* Where a key or value lies in the KV pool. */
#ifndef NMLP_CUDA_BATCH_PAGED_CUH
#define NMLP_CUDA_BATCH_PAGED_CUH

#include <cstdint>

#include "cuda/layout.h"

/* Number of the row of D elements that holds `position` of a kv head, of a sequence with that block table. */
__device__ __forceinline__ int64_t page_row(const int32_t *table, int position, int kv_head, int n_kv_heads) {
    const int page = table[position / NMLP_CUDA_PAGE_POSITIONS];
    return ((int64_t)page * n_kv_heads + kv_head) * NMLP_CUDA_PAGE_POSITIONS + position % NMLP_CUDA_PAGE_POSITIONS;
}

#endif
