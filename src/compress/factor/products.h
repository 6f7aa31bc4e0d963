/* Products with the model's own weights in double precision, and weights to double precision and back. */
#ifndef NMLP_COMPRESS_FACTOR_PRODUCTS_H
#define NMLP_COMPRESS_FACTOR_PRODUCTS_H

#include <stdbool.h>

#include "base/pool.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "linalg/linalg.h"

/* C [m,N] = A [m,K] W^T, or with `transposed` C [m,K] = A [m,N] W, of a weight W [N,K]; rows of C lie c_stride apart.
 */
typedef struct nmlp_weight_product {
    const nmlp_view *view; /* of W as the model stores it */
    const double *wide;    /* the same numbers */
    bool transposed;
    const nmlp_kernels *kernels; /* NULL: BLAS */
} nmlp_weight_product;

/* For weights of 16 bits the result is good to f32, since factors will be rounded to 16 bits; else f64. Where the
 * kernels multiply bf16 numbers and W has these, A is taken as the sum of two of them: 16 bits of every entry, and no
 * rounding of W. */
nmlp_status nmlp_weight_multiply(const nmlp_weight_product *product, nmlp_pool *pool, int64_t m, const double *a,
                                 double *c, int64_t c_stride, nmlp_err *err);

/* dst: as many doubles as the view has elements. */
void nmlp_widen(nmlp_pool *pool, double *dst, const nmlp_view *view);
/* dst: n elements of `dtype`. */
void nmlp_narrow(void *dst, nmlp_dtype dtype, const double *src, int64_t n);

#endif
