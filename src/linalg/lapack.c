/* Decompositions. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "linalg/linalg.h"
#include "linalg/openblas.h"

/* LAPACK gives the smallest first: turn values and rows round. */
static void reverse(double *a, int64_t n, double *values) {
    for (int64_t i = 0, j = n - 1; i < j; i++, j--) {
        double value = values[i];
        values[i] = values[j];
        values[j] = value;
        for (int64_t k = 0; k < n; k++) {
            double element = a[i * n + k];
            a[i * n + k] = a[j * n + k];
            a[j * n + k] = element;
        }
    }
}

/* A symmetric matrix is its own transpose, so the column-major call leaves eigenvectors in what are rows to us. The
 * sign of each is fixed: its largest component is positive. */
static void fix_signs(double *a, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double *row = a + i * n;
        int64_t largest = 0;
        for (int64_t k = 1; k < n; k++)
            if (fabs(row[k]) > fabs(row[largest])) largest = k;
        if (row[largest] < 0)
            for (int64_t k = 0; k < n; k++) row[k] = -row[k];
    }
}

static nmlp_status decompose(double *a, int64_t n, double *values, nmlp_err *err) {
    const nmlp_openblas *blas = nmlp_openblas_get();
    blasint order = (blasint)n, ask = -1, info = 0, n_ints = 0;
    double n_doubles = 0;
    blas->dsyevd("V", "L", &order, a, &order, values, &n_doubles, &ask, &n_ints, &ask, &info, 1, 1);
    blasint n_work = (blasint)n_doubles;
    double *work = nmlp_mem_new((size_t)n_work, sizeof *work, err);
    blasint *ints = nmlp_mem_new((size_t)n_ints, sizeof *ints, err);
    nmlp_status st = work && ints ? NMLP_OK : NMLP_E_NOMEM;
    if (st == NMLP_OK) {
        blas->dsyevd("V", "L", &order, a, &order, values, work, &n_work, ints, &n_ints, &info, 1, 1);
        if (info != 0)
            st = nmlp_fail(err, NMLP_E_NUMERIC, "dsyevd of a %lld x %lld matrix failed (info %d)", (long long)n,
                           (long long)n, (int)info);
    }
    nmlp_mem_free(work);
    nmlp_mem_free(ints);
    return st;
}

nmlp_status nmlp_linalg_eigen(double *a, int64_t n, double *values, nmlp_err *err) {
    for (int64_t i = 0; i < n * n; i++)
        if (!isfinite(a[i]))
            return nmlp_fail(err, NMLP_E_NUMERIC, "a matrix to be decomposed has a NaN or Inf at [%lld,%lld]",
                             (long long)(i / n), (long long)(i % n));
    NMLP_RETURN_IF_FAILED(decompose(a, n, values, err));
    reverse(a, n, values);
    fix_signs(a, n);
    return NMLP_OK;
}

struct eigen_run {
    nmlp_eigen_task *tasks;
    nmlp_status *st;
    nmlp_err *errs;
};

static void eigen_tasks(void *ctx, int64_t begin, int64_t end, int thread) {
    struct eigen_run *run = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        run->st[i] = nmlp_linalg_eigen(run->tasks[i].a, run->tasks[i].n, run->tasks[i].values, &run->errs[i]);
}

nmlp_status nmlp_linalg_eigen_all(nmlp_pool *pool, nmlp_eigen_task *tasks, int64_t n_tasks, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct eigen_run run = {.tasks = tasks,
                            .st = nmlp_mem_new((size_t)n_tasks, sizeof *run.st, err),
                            .errs = nmlp_mem_new((size_t)n_tasks, sizeof *run.errs, err)};
    if (!run.st || !run.errs) {
        st = NMLP_E_NOMEM;
    } else {
        nmlp_pool_for(pool, n_tasks, 1, eigen_tasks, &run);
        for (int64_t i = 0; i < n_tasks && st == NMLP_OK; i++) {
            st = run.st[i];
            if (st != NMLP_OK && err) *err = run.errs[i];
        }
    }
    nmlp_mem_free(run.st);
    nmlp_mem_free(run.errs);
    return st;
}

static void add_jitter(double *a, int64_t n, double share) {
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += a[i * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++) a[i * n + i] += share * a[i * n + i] + 1e-12 * mean;
}

/* S = Q diag(sqrt(max(values,0))): column i of S is eigenvector i scaled. */
static nmlp_status eigen_root(double *a, int64_t n, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    double *values = nmlp_mem_new((size_t)n, sizeof *values, err);
    double *rows = nmlp_mem_new((size_t)(n * n), sizeof *rows, err);
    if (!values || !rows) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    memcpy(rows, a, (size_t)(n * n) * sizeof *a);
    NMLP_TRY(nmlp_linalg_eigen(rows, n, values, err));
    for (int64_t i = 0; i < n; i++) {
        double scale = values[i] > 0 ? sqrt(values[i]) : 0;
        for (int64_t k = 0; k < n; k++) a[k * n + i] = scale * rows[i * n + k];
    }
out:
    nmlp_mem_free(values);
    nmlp_mem_free(rows);
    return st;
}

nmlp_status nmlp_linalg_root(nmlp_pool *pool, double *a, int64_t n, bool *triangular, nmlp_err *err) {
    double *copy = nmlp_mem_new((size_t)(n * n), sizeof *copy, err);
    if (!copy) return NMLP_E_NOMEM;
    memcpy(copy, a, (size_t)(n * n) * sizeof *a);
    *triangular = false;
    for (double jitter = 1e-6; jitter < 2e-3 && !*triangular; jitter *= 10) {
        memcpy(a, copy, (size_t)(n * n) * sizeof *a);
        add_jitter(a, n, jitter);
        *triangular = nmlp_linalg_cholesky(pool, a, n);
    }
    nmlp_status st = NMLP_OK;
    if (!*triangular) {
        memcpy(a, copy, (size_t)(n * n) * sizeof *a);
        st = eigen_root(a, n, err);
    }
    nmlp_mem_free(copy);
    return st;
}
