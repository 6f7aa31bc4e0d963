/* Nested low-rank factors of the matrices of one MLP or attention: the best factors of every rank are the first columns
 * and rows of one pair.
 *
 * A matrix W [m,n] seen through inputs with second moments C = S S^T and row weights D loses |D (W - u v) S|^2 at rank
 * k. The minimum is u = D^-1 Q_k, v = Q_k^T D W with Q_k the leading left singular vectors of D W S, found from one
 * symmetric eigenproblem of the small dimension; its eigenvalues are the exact loss at every rank. C is never inverted.
 */
#ifndef NMLP_COMPRESS_FACTOR_FACTORISE_H
#define NMLP_COMPRESS_FACTOR_FACTORISE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "compress/times.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "tensor/view.h"

/* Of a module (model.h) its matrices in order, then those of the same input one above the other, with a shared v. Of an
 * MLP these are gate, up, down, and gate over up [2I,H]. */
enum { NMLP_NESTED_COUNT = NMLP_MODULE_MATRICES_MAX + 1 };
enum { NMLP_NESTED_GATE, NMLP_NESTED_UP, NMLP_NESTED_DOWN, NMLP_NESTED_JOINT };

typedef struct nmlp_nested {
    int64_t rows; /* of a slice, if there are several */
    int64_t cols;
    int64_t slices; /* with factors of their own (factor_slices.h): ut and v have `slices` vectors for each of a rank */
    int64_t rank;   /* columns kept: the largest rank that saves parameters */
    int64_t full;   /* smaller dimension */
    nmlp_dtype dtype;
    const void *ut;     /* [rank, rows]: row i is column i of u */
    const void *v;      /* [rank, cols] */
    const double *loss; /* [full+1]: loss[k] when k columns are kept; loss[0] is the energy, loss[full] is 0 */
    void *owned;        /* memory behind ut, v, loss; NULL when somebody else's */
} nmlp_nested;

void nmlp_nested_fini(nmlp_nested *nested);

/* Largest rank with fewer parameters than the dense matrix. */
int64_t nmlp_rank_break_even(int64_t rows, int64_t cols);

/* Everything the factorisation of one module needs. */
typedef struct nmlp_module_moments {
    int64_t hidden;
    int n_first;                               /* matrices of the same input: gate and up, or q, k and v */
    int64_t rows[NMLP_MODULE_MATRICES_MAX];    /* [n_first] of these */
    int64_t inner;                             /* inputs of the last matrix */
    const double *w[NMLP_MODULE_MATRICES_MAX]; /* [rows,H] each, then [H,inner] */
    nmlp_view views[NMLP_MODULE_MATRICES_MAX]; /* the same as the model stores them; factors have the first's type */
    const nmlp_kernels *kernels;               /* for products; NULL: BLAS */
    double *input;                             /* [H,H] Gram of inputs, destroyed; NULL: identity (plain SVD) */
    double *output;                            /* [H,H] Gram of outputs; NULL: of the last matrix (plain SVD) */
    const double *d[NMLP_MODULE_MATRICES_MAX]; /* [rows] row weights of the first ones, NULL: ones */
    bool separate;                             /* the first ones with a v each */
    bool joint;                                /* with a shared one */
    nmlp_compress_times *times;                /* may be NULL */
} nmlp_module_moments;

/* Fills nested[NMLP_NESTED_COUNT]; what was not asked for has rank 0. */
nmlp_status nmlp_factorise_module(nmlp_nested *nested, const nmlp_module_moments *moments, nmlp_pool *pool,
                                  nmlp_err *err);

/* u [n_rows, rank] of rows first_row.. in the nested factors' dtype. */
void nmlp_nested_u(const nmlp_nested *nested, int64_t rank, int64_t first_row, int64_t n_rows, void *u,
                   nmlp_pool *pool);

/* Memory for ut, v and the losses, by the shape in `nested`; *bytes of it from nested->owned on. */
nmlp_status nmlp_nested_alloc(nmlp_nested *nested, int64_t *bytes, nmlp_err *err);

/* Packs ut [rank, rows] and v [rank, cols] with the losses; equalises the norms of each pair of vectors, which leaves
 * the product alone and keeps both in the range of small types. */
nmlp_status nmlp_nested_pack(nmlp_nested *nested, double *ut, double *v, const double *loss, nmlp_pool *pool,
                             nmlp_err *err);

/* Row weights of gate and up: how an error in a neuron's gate or up value reaches the residual stream, from the mean
 * squares of f(gate) and of up*f'(gate), f the activation. down [H,I]. Floored at 1e-3 of the median. */
nmlp_status nmlp_swiglu_weights(double *d_gate, double *d_up, const double *down, const double *gate2,
                                const double *slope2, int64_t hidden, int64_t intermediate, nmlp_err *err);

#endif
