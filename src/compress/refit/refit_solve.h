/* Factors fitted to the inputs the compressed model really sees, in closed form (reduced-rank regression with an
 * anchored ridge).
 *
 * The ridge counts as pseudo tokens with uncorrelated channels on which the original matrix is right. With few tokens
 * the result stays near the original, with many the data decide. */
#ifndef NMLP_COMPRESS_REFIT_REFIT_SOLVE_H
#define NMLP_COMPRESS_REFIT_REFIT_SOLVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "compress/times.h"
#include "kernels/kernels.h"
#include "tensor/view.h"

/* gram [n,n] += ridge * its diagonal; anchor [n] receives what was added. Channels that are always zero get a small
 * share of the mean. */
void nmlp_refit_add_ridge(double *gram, double *anchor, int64_t n, double ridge);

/* Matrices of one input: gate and up, or q, k and v. z are inputs in the compressed model, x the same tokens in the
 * original one. Wanted: W x from z. */
enum { NMLP_REFIT_TALL_MAX = 3 };

typedef struct nmlp_refit_tall {
    int64_t n;                                 /* inputs, H */
    int n_matrices;                            /* 1, or more with a shared v */
    int64_t rows[NMLP_REFIT_TALL_MAX];         /* of each matrix */
    const double *w[NMLP_REFIT_TALL_MAX];      /* [rows,n] */
    nmlp_view views[NMLP_REFIT_TALL_MAX];      /* the same as the model stores them */
    const nmlp_kernels *kernels;               /* for products; NULL: BLAS */
    const double *weight[NMLP_REFIT_TALL_MAX]; /* [rows] row weights, NULL: ones */
    const double *gram;                        /* [n,n] mean z z^T */
    const double *cross;                       /* [n,n] mean x z^T */
    double ridge;                              /* pseudo tokens per token */
    int64_t rank;
    nmlp_compress_times *times; /* may be NULL */
} nmlp_refit_tall;

/* Of all matrices. */
int64_t nmlp_refit_tall_rows(const nmlp_refit_tall *in);

/* ut [rank, all rows], v [rank, n]. */
nmlp_status nmlp_refit_tall_solve(const nmlp_refit_tall *in, double *ut, double *v, nmlp_pool *pool, nmlp_err *err);

/* Down, or o: wanted t [m] from inputs a [n], both of the compressed model. gram [n,n] mean a a^T (destroyed), cross
 * [m,n] mean t a^T (destroyed), w [m,n] the original. rank 0 solves for a dense matrix into v [m,n]. */
typedef struct nmlp_refit_down {
    int64_t m;
    int64_t n;
    const double *w;
    double *gram;
    double *cross;
    double ridge;
    int64_t rank;
} nmlp_refit_down;

/* ut [rank, m], v [rank, n]. */
nmlp_status nmlp_refit_down_solve(const nmlp_refit_down *in, double *ut, double *v, nmlp_pool *pool, nmlp_err *err);

#endif
