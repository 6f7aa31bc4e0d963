/* Layout of matrices on the device, in plain C for both compilers: padded rows, TMA descriptors, integer helpers. */
#ifndef NMLP_CUDA_LAYOUT_H
#define NMLP_CUDA_LAYOUT_H

#include <stdint.h>

enum {
    NMLP_CUDA_PAD = 64, /* elements; keeps bf16 rows 128-byte aligned, and K a multiple of what kernels load */
    NMLP_CUDA_PAGE_POSITIONS = 64, /* of a page of the KV pool: one tile of keys of prompt attention */
    NMLP_CUDA_TENSOR_MAP_BYTES = 128
};

/* A TMA descriptor (the driver's CUtensorMap) of one matrix. */
typedef struct nmlp_cuda_tensor_map {
    unsigned char bytes[NMLP_CUDA_TENSOR_MAP_BYTES];
} __attribute__((aligned(64))) nmlp_cuda_tensor_map;

static inline int32_t nmlp_cuda_divide_up(int64_t a, int64_t b) { return (int32_t)((a + b - 1) / b); }
static inline int32_t nmlp_cuda_larger(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t nmlp_cuda_smaller(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t nmlp_cuda_pad(int64_t n) { return nmlp_cuda_divide_up(n, NMLP_CUDA_PAD) * NMLP_CUDA_PAD; }

#endif
