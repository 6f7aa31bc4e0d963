/* GEMM of up to 32 rows Y [S,N] = X [S,K] W^T with a long W, read once at the memory's rate (sm_90a): the head.
 *
 * One block per multiprocessor holds all of X, so that only W moves. Tiles of up to 64 rows of W go round the blocks,
 * cut so that all have as many rows. A tile comes in slabs of 64 columns: one warp requests them into a ring of stages,
 * the first ones before the kernel before has ended, and a warpgroup multiplies them by wgmma, W as the operand of 64
 * rows and X as the other. Rows past a short tile are what was there before; nobody stores what they give.
 *
 * Where X leaves the ring no room, and on older chips, mlp_rows32_sm80.h does the same. Columns of X and W are padded
 * with zeros to multiples of 64. Same input, same bits. */
#ifndef NMLP_CUDA_BATCH_GEMM_STREAM_SM90_H
#define NMLP_CUDA_BATCH_GEMM_STREAM_SM90_H

#include <stddef.h>
#include <stdint.h>

enum {
    NMLP_CUDA_GEMM_STREAM_ROWS = 64, /* of a tile, at most: m of wgmma */
    NMLP_CUDA_GEMM_STREAM_COLS = 64, /* of a slab */
    NMLP_CUDA_GEMM_STREAM_STAGES_MAX = 12,
    NMLP_CUDA_GEMM_STREAM_SLABS_MAX = 64
};

typedef struct nmlp_cuda_gemm_stream {
    const void *w_map; /* boxes of tile_rows by 64 columns */
    const void *x_map; /* of all rows, padded to 8, 16 or 32 */
    float *y;          /* [S, y_pitch] */
    int32_t y_pitch;
    int32_t s;
    int32_t n;
    int32_t n_slabs; /* of K */
    int32_t tile_rows;
    int32_t n_tiles;
    int32_t n_stages; /* 0: not planned */
    int32_t n_blocks;
} nmlp_cuda_gemm_stream;

#ifdef __cplusplus
extern "C" {
#endif

size_t nmlp_cuda_gemm_stream_shared_bytes(const nmlp_cuda_gemm_stream *g);
/* Allows the kernel for s rows that much shared memory. Both return a cudaError_t. */
int nmlp_cuda_gemm_stream_prepare(int32_t s, size_t shared_bytes);
int nmlp_cuda_gemm_stream_launch(const nmlp_cuda_gemm_stream *g, void *stream);

#ifdef __cplusplus
}
#endif

#endif
