/* Cholesky factors by blocks of columns from left to right: each is finished, then taken off all that lies behind it,
 * rows spread over the pool. */
#include <string.h>

#include "base/ints.h"
#include "linalg/linalg.h"
#include "linalg/openblas.h"

enum { BLOCK = 256, ROWS_PER_TASK = 128 };

/* Columns from `first` to `end`. */
struct block {
    double *a;
    int64_t n, first, end;
};

static int64_t tasks_below(const struct block *b) { return (b->n - b->end + ROWS_PER_TASK - 1) / ROWS_PER_TASK; }

/* Rows below the block become rows of L. */
static void solve_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct block *b = ctx;
    (void)thread;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = b->end + task * ROWS_PER_TASK, rows = nmlp_min(ROWS_PER_TASK, b->n - row);
        nmlp_openblas_get()->dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, (blasint)rows,
                                   (blasint)(b->end - b->first), 1.0, b->a + b->first * b->n + b->first, (blasint)b->n,
                                   b->a + row * b->n + b->first, (blasint)b->n);
    }
}

/* Columns behind the block, up to the end of the task's square on the diagonal. */
static void update_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct block *b = ctx;
    (void)thread;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = b->end + task * ROWS_PER_TASK, rows = nmlp_min(ROWS_PER_TASK, b->n - row);
        nmlp_openblas_get()->dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows,
                                   (blasint)(row + rows - b->end), (blasint)(b->end - b->first), -1.0,
                                   b->a + row * b->n + b->first, (blasint)b->n, b->a + b->end * b->n + b->first,
                                   (blasint)b->n, 1.0, b->a + row * b->n + b->end, (blasint)b->n);
    }
}

static void clear_above(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct block *b = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) memset(b->a + i * b->n + i + 1, 0, (size_t)(b->n - i - 1) * sizeof *b->a);
}

/* The square on the diagonal: its rows are the columns of LAPACK, whose upper triangle is our lower one. */
static bool factor_square(const struct block *b) {
    blasint width = (blasint)(b->end - b->first), stride = (blasint)b->n, info = 0;
    nmlp_openblas_get()->dpotrf("U", &width, b->a + b->first * b->n + b->first, &stride, &info, 1);
    return info == 0;
}

bool nmlp_linalg_cholesky(nmlp_pool *pool, double *a, int64_t n) {
    struct block b = {.a = a, .n = n};
    for (; b.first < n; b.first = b.end) {
        b.end = nmlp_min(b.first + BLOCK, n);
        if (!factor_square(&b)) return false;
        nmlp_pool_for(pool, tasks_below(&b), 1, solve_rows, &b);
        nmlp_pool_for(pool, tasks_below(&b), 1, update_rows, &b);
    }
    nmlp_pool_for(pool, n, ROWS_PER_TASK, clear_above, &b);
    return true;
}
