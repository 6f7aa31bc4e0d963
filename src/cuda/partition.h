/* Arithmetic of cutting work into pieces. */
#ifndef NMLP_CUDA_PARTITION_H
#define NMLP_CUDA_PARTITION_H

#include <stdint.h>

static inline int32_t nmlp_cuda_divide_up(int64_t a, int64_t b) { return (int32_t)((a + b - 1) / b); }
static inline int32_t nmlp_cuda_larger(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t nmlp_cuda_smaller(int32_t a, int32_t b) { return a < b ? a : b; }

#endif
