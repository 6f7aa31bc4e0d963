/* GEMM of up to 32 rows Y [S,N] = X [S,K] W^T in one wave of small clusters that hold all they read (sm_90a).
 *
 * A cluster of two blocks takes some n8 tiles (8 rows of W) and half of K in each. A block's part of W and X, in slabs
 * of 64 columns, is in shared memory all at once: there is no ring, every barrier is used once, and W is requested
 * before the kernel before has ended. Each warp has slabs of its own, from request to product, so the block meets only
 * where sums of warps are added; then the blocks send each other the sums of every second n8 tile.
 *
 * Matrices of more than one wave, rows too long for shared memory and older chips take mlp_rows32_sm80.h. Columns of X
 * and W are padded with zeros to multiples of 64. Same input, same bits. */
#ifndef NMLP_CUDA_BATCH_GEMM_RESIDENT_SM90_H
#define NMLP_CUDA_BATCH_GEMM_RESIDENT_SM90_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/residual.h"

enum {
    NMLP_CUDA_GEMM_RESIDENT_BLOCKS = 2, /* of a cluster */
    NMLP_CUDA_GEMM_RESIDENT_N8 = 8,     /* rows of W: n of the mma */
    NMLP_CUDA_GEMM_RESIDENT_COLS = 64   /* of a slab */
};

typedef struct nmlp_cuda_gemm_resident {
    const void *w_map; /* boxes of n8_tiles * 8 rows by 64 columns */
    const void *x_map; /* of all rows */
    nmlp_cuda_row_scale scale;
    nmlp_cuda_residual residual;
    float *y; /* [S, y_pitch], where there is no residual */
    int32_t y_pitch;
    int32_t s;
    int32_t n;
    int32_t n_slabs;
    int32_t n8_tiles; /* of a cluster; 0: not planned */
} nmlp_cuda_gemm_resident;

#ifdef __cplusplus
extern "C" {
#endif

size_t nmlp_cuda_gemm_resident_shared_bytes(const nmlp_cuda_gemm_resident *g);
/* Clusters that are resident together; 0 where the code or the chip has none. A block may use `shared_bytes`. */
int nmlp_cuda_gemm_resident_clusters(const nmlp_cuda_gemm_resident *g, size_t shared_bytes);
/* Returns a cudaError_t. */
int nmlp_cuda_gemm_resident_launch(const nmlp_cuda_gemm_resident *g, void *stream);

#ifdef __cplusplus
}
#endif

#endif
