/* A norm without a kernel of its own: the GEMM before it adds its result to the residual stream and leaves what the
 * norm multiplies, hidden * weight, with sums of squares of hidden; the GEMM after it multiplies its results by 1/rms
 * of the row. */
#ifndef NMLP_CUDA_RESIDUAL_H
#define NMLP_CUDA_RESIDUAL_H

#include <stdint.h>

enum { NMLP_CUDA_SQUARES_COLS = 8 }; /* columns of one sum of squares */

/* What a GEMM does with its results. */
typedef struct nmlp_cuda_residual {
    float *hidden;       /* f32 [S, pitch]: results are added to it; NULL: they are stored elsewhere as they are */
    const float *bias;   /* or NULL */
    const float *weight; /* of the next norm */
    void *x;             /* bf16 [S, pitch] */
    float *squares;      /* f32 [S, pitch / SQUARES_COLS] */
    int32_t pitch;
} nmlp_cuda_residual;

/* 1/rms of the rows a GEMM reads. */
typedef struct nmlp_cuda_row_scale {
    const float *squares; /* [S, n_parts]; NULL: rows are as the GEMM is to have them */
    int32_t n_parts;      /* a multiple of 4 */
    int32_t dim;
    float eps;
} nmlp_cuda_row_scale;

#endif
