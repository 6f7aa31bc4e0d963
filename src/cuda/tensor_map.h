/* Descriptions of weight matrices for TMA, which brings a whole tile with one instruction. */
#ifndef NMLP_CUDA_TENSOR_MAP_H
#define NMLP_CUDA_TENSOR_MAP_H

#include "cuda/device.h"
#include "cuda/layout.h"

/* Writes to device memory `map` (aligned to 64 bytes) how tiles of `rows` by `blocks_k` * 64 are cut out of bf16 `data`
 * [n,k] and laid out as decode_ring.cuh says; what lies outside reads as zero. Does nothing on chips before Hopper,
 * whose kernels copy by address. */
nmlp_status nmlp_cuda_tensor_map_upload(void *map, const void *data, int32_t n, int32_t k, int32_t rows,
                                        int32_t blocks_k, nmlp_err *err);

/* Boxes of `box_rows` by 64 of a bf16 matrix [n, pitch] whose first k columns count, swizzled in rows of 128 bytes.
 * Hopper only. */
nmlp_status nmlp_cuda_tensor_map_make(nmlp_cuda_tensor_map *map, const void *data, int32_t n, int32_t k, int32_t pitch,
                                      int32_t box_rows, nmlp_err *err);

#endif
