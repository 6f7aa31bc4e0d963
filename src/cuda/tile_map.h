/* Descriptions of weight matrices for Hopper's copy engine, which brings a whole tile with one instruction. */
#ifndef NMLP_CUDA_TILE_MAP_H
#define NMLP_CUDA_TILE_MAP_H

#include "cuda/device.h"

enum { NMLP_CUDA_TILE_MAP_BYTES = 128 };

/* Writes to device memory `map` (aligned to 64 bytes) how tiles of NMLP_CUDA_UNIT_ROWS by NMLP_CUDA_TILE_COLS are cut out of bf16 `data` [n,k] and laid
 * out as stream_ring.cuh says; what lies outside reads as zero. Does nothing on chips before Hopper, whose kernels copy by address. */
nmlp_status nmlp_cuda_tile_map_put(void *map, const void *data, int32_t n, int32_t k, nmlp_err *err);

#endif
