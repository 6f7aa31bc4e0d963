/* Second moments of token rows: f32 products by BLAS, or by the matrix kernels where those round activations to bf16
 * anyway. */
#ifndef NMLP_COMPRESS_CALIBRATE_MOMENTS_H
#define NMLP_COMPRESS_CALIBRATE_MOMENTS_H

#include "base/pool.h"
#include "base/status.h"
#include "kernels/kernels.h"

/* C [n,n] += X^T X of X [S,n], C symmetric. With kernels that round to bf16, products are of rounded values, summed in
 * f32 over at most 2048 tokens; else as nmlp_linalg_gram_add. */
nmlp_status nmlp_moments_gram(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s,
                              int64_t n, nmlp_err *err);
/* C [m,n] += Y^T X of Y [S,m], X [S,n], in the same way. */
nmlp_status nmlp_moments_cross(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *y, const float *x,
                               int64_t s, int64_t m, int64_t n, nmlp_err *err);

#endif
