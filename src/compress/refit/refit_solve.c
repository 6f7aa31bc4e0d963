#include "compress/refit/refit_solve.h"

#include <string.h>

#include "base/mem.h"
#include "compress/factor/products.h"
#include "linalg/linalg.h"
#include "tensor/dtype.h"

void nmlp_refit_add_ridge(double *gram, double *anchor, int64_t n, double ridge) {
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += gram[i * n + i] / (double)n;
    if (!(mean > 0)) mean = 1;
    for (int64_t i = 0; i < n; i++) {
        anchor[i] = ridge * gram[i * n + i] + 1e-6 * mean;
        gram[i * n + i] += anchor[i];
    }
}

static nmlp_status factor(nmlp_pool *pool, double *gram, int64_t n, nmlp_err *err) {
    if (nmlp_linalg_cholesky(pool, gram, n)) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_NUMERIC, "the Gram matrix of a refit is not positive definite in spite of its ridge");
}

/* G [n,n] = sum over the matrices of W^T D^2 W. */
static nmlp_status add_weighted(const nmlp_refit_tall *in, double *g, double *part, nmlp_pool *pool, nmlp_err *err) {
    int64_t n = in->n;
    bool narrow = nmlp_dtype_bytes(in->views[0].dtype) == 2;
    for (int m = 0; m < in->n_matrices; m++) {
        NMLP_RETURN_IF_FAILED(
            nmlp_linalg_weighted_squares(pool, n, in->rows[m], in->w[m], in->weight[m], narrow, part, err));
        for (int64_t i = 0; i < n * n; i++) g[i] += part[i];
    }
    return NMLP_OK;
}

struct tall_work {
    double *root;    /* [n,n] Cholesky factor L of the ridged Gram */
    double *r;       /* [n,n] (cross + anchor) L^-T: inputs whitened, aimed at the wanted outputs */
    double *g;       /* [n,n] */
    double *vectors; /* [n,n] */
    double *half;    /* [n,n] */
    double *values;  /* [n] */
    double *anchor;  /* [n] */
};

static nmlp_status tall_eigen(const nmlp_refit_tall *in, struct tall_work *w, nmlp_pool *pool, nmlp_err *err) {
    int64_t n = in->n;
    memcpy(w->root, in->gram, (size_t)(n * n) * sizeof *w->root);
    nmlp_refit_add_ridge(w->root, w->anchor, n, in->ridge);
    memcpy(w->r, in->cross, (size_t)(n * n) * sizeof *w->r);
    for (int64_t i = 0; i < n; i++) w->r[i * n + i] += w->anchor[i];
    NMLP_RETURN_IF_FAILED(factor(pool, w->root, n, err));
    nmlp_linalg_solve_right_transposed(pool, w->root, w->r, n, n);
    NMLP_RETURN_IF_FAILED(add_weighted(in, w->g, w->half, pool, err));
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_PLAIN, n, n, n, w->g, w->r, w->half);
    nmlp_linalg_gemm(pool, NMLP_TRANSPOSED, NMLP_PLAIN, n, n, n, w->r, w->half, w->vectors);
    nmlp_compress_work before = nmlp_compress_times_enter(in->times, NMLP_COMPRESS_WORK_EIGEN);
    nmlp_status st = nmlp_linalg_eigen(w->vectors, n, w->values, err);
    nmlp_compress_times_enter(in->times, before);
    return st;
}

int64_t nmlp_refit_tall_rows(const nmlp_refit_tall *in) {
    int64_t rows = 0;
    for (int m = 0; m < in->n_matrices; m++) rows += in->rows[m];
    return rows;
}

nmlp_status nmlp_refit_tall_solve(const nmlp_refit_tall *in, double *ut, double *v, nmlp_pool *pool, nmlp_err *err) {
    int64_t n = in->n;
    int64_t k = in->rank;
    size_t square = (size_t)(n * n);
    nmlp_status st = NMLP_E_NOMEM;
    nmlp_arena arena;
    nmlp_arena_init(&arena);
    struct tall_work w = {.root = nmlp_arena_new(&arena, square, sizeof(double), err),
                          .r = nmlp_arena_new(&arena, square, sizeof(double), err),
                          .g = nmlp_arena_new(&arena, square, sizeof(double), err),
                          .vectors = nmlp_arena_new(&arena, square, sizeof(double), err),
                          .half = nmlp_arena_new(&arena, square, sizeof(double), err),
                          .values = nmlp_arena_new(&arena, (size_t)n, sizeof(double), err),
                          .anchor = nmlp_arena_new(&arena, (size_t)n, sizeof(double), err)};
    if (!w.root || !w.r || !w.g || !w.vectors || !w.half || !w.values || !w.anchor) goto out;
    NMLP_TRY(tall_eigen(in, &w, pool, err));
    /* t [k,n] = E r^T; u^T = t W^T; v = E L^-1 */
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_TRANSPOSED, k, n, n, w.vectors, w.r, w.half);
    for (int64_t m = 0, at = 0; m < in->n_matrices; at += in->rows[m++]) {
        nmlp_weight_product product = {.view = &in->views[m], .wide = in->w[m], .kernels = in->kernels};
        NMLP_TRY(nmlp_weight_multiply(&product, pool, k, w.half, ut + at, nmlp_refit_tall_rows(in), err));
    }
    memcpy(v, w.vectors, (size_t)(k * n) * sizeof *v);
    nmlp_linalg_solve_right(pool, w.root, v, k, n);
    st = NMLP_OK;
out:
    nmlp_arena_fini(&arena);
    return st;
}

nmlp_status nmlp_refit_down_solve(const nmlp_refit_down *in, double *ut, double *v, nmlp_pool *pool, nmlp_err *err) {
    int64_t m = in->m;
    int64_t n = in->n;
    nmlp_status st = NMLP_E_NOMEM;
    double *anchor = nmlp_mem_new((size_t)n, sizeof *anchor, err);
    double *vectors = nmlp_mem_new((size_t)(m * m), sizeof *vectors, err);
    double *values = nmlp_mem_new((size_t)m, sizeof *values, err);
    if (!anchor || !vectors || !values) goto out;
    nmlp_refit_add_ridge(in->gram, anchor, n, in->ridge);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) in->cross[i * n + j] += anchor[j] * in->w[i * n + j];
    NMLP_TRY(factor(pool, in->gram, n, err));
    nmlp_linalg_solve_right_transposed(pool, in->gram, in->cross, m, n);
    if (in->rank == 0) {
        memcpy(v, in->cross, (size_t)(m * n) * sizeof *v);
        nmlp_linalg_solve_right(pool, in->gram, v, m, n);
        st = NMLP_OK;
        goto out;
    }
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_TRANSPOSED, m, m, n, in->cross, in->cross, vectors);
    NMLP_TRY(nmlp_linalg_eigen(vectors, m, values, err));
    memcpy(ut, vectors, (size_t)(in->rank * m) * sizeof *ut);
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_PLAIN, in->rank, n, m, vectors, in->cross, v);
    nmlp_linalg_solve_right(pool, in->gram, v, in->rank, n);
    st = NMLP_OK;
out:
    nmlp_mem_free(anchor);
    nmlp_mem_free(vectors);
    nmlp_mem_free(values);
    return st;
}
