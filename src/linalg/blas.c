/* Products: fixed blocks over the pool, one BLAS call each. */
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "linalg/linalg.h"
#include "linalg/openblas.h"

enum {
    ROWS_PER_TASK = 128,
    GRAM_BLOCK = NMLP_LINALG_BLOCK,
    GRAM_TOKENS = 256,
    ELEMS_PER_TASK = 1 << 16,
    MIRROR_SIDE = 64
};

struct gemm {
    nmlp_trans ta, tb;
    int64_t m, n, k;
    const double *a, *b;
    double *c;
    int64_t c_stride;
};

static void gemm_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct gemm *g = ctx;
    (void)thread;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task * ROWS_PER_TASK;
        int64_t rows = g->m - row < ROWS_PER_TASK ? g->m - row : ROWS_PER_TASK;
        const double *a = g->ta == NMLP_PLAIN ? g->a + row * g->k : g->a + row;
        nmlp_openblas_get()->dgemm(CblasRowMajor, g->ta == NMLP_PLAIN ? CblasNoTrans : CblasTrans,
                                   g->tb == NMLP_PLAIN ? CblasNoTrans : CblasTrans, (blasint)rows, (blasint)g->n,
                                   (blasint)g->k, 1.0, a, (blasint)(g->ta == NMLP_PLAIN ? g->k : g->m), g->b,
                                   (blasint)(g->tb == NMLP_PLAIN ? g->n : g->k), 0.0, g->c + row * g->c_stride,
                                   (blasint)g->c_stride);
    }
}

void nmlp_linalg_gemm(nmlp_pool *pool, nmlp_trans ta, nmlp_trans tb, int64_t m, int64_t n, int64_t k, const double *a,
                      const double *b, double *c) {
    nmlp_linalg_gemm_into(pool, ta, tb, m, n, k, a, b, c, n);
}

void nmlp_linalg_gemm_into(nmlp_pool *pool, nmlp_trans ta, nmlp_trans tb, int64_t m, int64_t n, int64_t k,
                           const double *a, const double *b, double *c, int64_t c_stride) {
    struct gemm g = {.ta = ta, .tb = tb, .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .c_stride = c_stride};
    nmlp_pool_for(pool, (m + ROWS_PER_TASK - 1) / ROWS_PER_TASK, 1, gemm_rows, &g);
}

/* What lies below the diagonal, above it: squares of rows, whose columns are read from L1. */
struct mirror {
    double *c;
    int64_t n;
};

static void mirror_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct mirror *m = ctx;
    (void)thread;
    for (int64_t first = begin; first < m->n; first += MIRROR_SIDE) {
        int64_t last = nmlp_min(first + MIRROR_SIDE, m->n);
        for (int64_t i = begin; i < end; i++)
            for (int64_t j = first > i ? first : i + 1; j < last; j++) m->c[i * m->n + j] = m->c[j * m->n + i];
    }
}

void nmlp_linalg_mirror(nmlp_pool *pool, double *c, int64_t n) {
    struct mirror m = {.c = c, .n = n};
    nmlp_pool_for(pool, n, MIRROR_SIDE, mirror_rows, &m);
}

/* C = A^T A or A A^T: rows of the lower triangle, up to the end of the block on the diagonal. */
struct squares {
    nmlp_trans ta;
    int64_t n, k;
    const double *a;
    double *c;
};

static void squares_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct squares *g = ctx;
    bool by_columns = g->ta == NMLP_TRANSPOSED;
    int64_t stride = by_columns ? g->n : g->k;
    (void)thread;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task * ROWS_PER_TASK;
        int64_t rows = nmlp_min(ROWS_PER_TASK, g->n - row);
        nmlp_openblas_get()->dgemm(CblasRowMajor, by_columns ? CblasTrans : CblasNoTrans,
                                   by_columns ? CblasNoTrans : CblasTrans, (blasint)rows, (blasint)(row + rows),
                                   (blasint)g->k, 1.0, g->a + (by_columns ? row : row * stride), (blasint)stride, g->a,
                                   (blasint)stride, 0.0, g->c + row * g->n, (blasint)g->n);
    }
}

struct narrowing {
    float *to;
    const double *from;
};

static void narrow_elems(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct narrowing *n = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) n->to[i] = (float)n->from[i];
}

static float *narrowed(nmlp_pool *pool, const double *from, int64_t n, nmlp_err *err) {
    struct narrowing narrowing = {.to = nmlp_mem_new_raw((size_t)n, sizeof(float), err), .from = from};
    if (narrowing.to) nmlp_pool_for(pool, n, ELEMS_PER_TASK, narrow_elems, &narrowing);
    return narrowing.to;
}

struct gemm_f32 {
    nmlp_trans ta, tb;
    int64_t m, n, k;
    const float *a, *b;
    float *part; /* [m,n] */
    double *c;
    int64_t c_stride;
};

static void gemm_f32_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct gemm_f32 *g = ctx;
    (void)thread;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task * ROWS_PER_TASK;
        int64_t rows = g->m - row < ROWS_PER_TASK ? g->m - row : ROWS_PER_TASK;
        const float *a = g->ta == NMLP_PLAIN ? g->a + row * g->k : g->a + row;
        float *part = g->part + row * g->n;
        nmlp_openblas_get()->sgemm(CblasRowMajor, g->ta == NMLP_PLAIN ? CblasNoTrans : CblasTrans,
                                   g->tb == NMLP_PLAIN ? CblasNoTrans : CblasTrans, (blasint)rows, (blasint)g->n,
                                   (blasint)g->k, 1.0f, a, (blasint)(g->ta == NMLP_PLAIN ? g->k : g->m), g->b,
                                   (blasint)(g->tb == NMLP_PLAIN ? g->n : g->k), 0.0f, part, (blasint)g->n);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < g->n; j++) g->c[(row + i) * g->c_stride + j] = (double)part[i * g->n + j];
    }
}

nmlp_status nmlp_linalg_gemm_f32(nmlp_pool *pool, nmlp_trans ta, nmlp_trans tb, int64_t m, int64_t n, int64_t k,
                                 const double *a, const double *b, double *c, int64_t c_stride, nmlp_err *err) {
    nmlp_status st = NMLP_E_NOMEM;
    float *narrow_a = narrowed(pool, a, m * k, err);
    float *narrow_b = narrowed(pool, b, k * n, err);
    float *part = nmlp_mem_new_raw((size_t)(m * n), sizeof *part, err);
    if (narrow_a && narrow_b && part) {
        struct gemm_f32 g = {.ta = ta,
                             .tb = tb,
                             .m = m,
                             .n = n,
                             .k = k,
                             .a = narrow_a,
                             .b = narrow_b,
                             .part = part,
                             .c = c,
                             .c_stride = c_stride};
        nmlp_pool_for(pool, (m + ROWS_PER_TASK - 1) / ROWS_PER_TASK, 1, gemm_f32_rows, &g);
        st = NMLP_OK;
    }
    nmlp_mem_free(narrow_a);
    nmlp_mem_free(narrow_b);
    nmlp_mem_free(part);
    return st;
}

void nmlp_linalg_gemm_f32_strided(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride, const float *b,
                                  int64_t b_stride, float *c, int64_t c_stride) {
    nmlp_openblas_get()->sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1.0f, a,
                               (blasint)a_stride, b, (blasint)b_stride, 0.0f, c, (blasint)c_stride);
}

/* One task is one block of C: all tokens in order, so the sum has the same order whoever does it. */
struct cross {
    const float *y, *x;
    double *c;
    float *scratch; /* GRAM_BLOCK^2 per thread */
    int64_t s, m, n, blocks_n;
    bool symmetric; /* y is x */
    bool by_rows;   /* tokens are columns: x [n,s] */
    nmlp_block_part part;
};

static void cross_block(const struct cross *g, int64_t i, int64_t j, float *scratch) {
    int64_t rows = nmlp_min(GRAM_BLOCK, g->m - i);
    int64_t cols = nmlp_min(GRAM_BLOCK, g->n - j);
    for (int64_t t = 0; t < g->s; t += GRAM_TOKENS) {
        int64_t tokens = nmlp_min(GRAM_TOKENS, g->s - t);
        if (g->by_rows)
            nmlp_openblas_get()->sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)cols,
                                       (blasint)tokens, 1.0f, g->y + i * g->s + t, (blasint)g->s, g->x + j * g->s + t,
                                       (blasint)g->s, 0.0f, scratch, (blasint)cols);
        else
            nmlp_openblas_get()->sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)rows, (blasint)cols,
                                       (blasint)tokens, 1.0f, g->y + t * g->m + i, (blasint)g->m, g->x + t * g->n + j,
                                       (blasint)g->n, 0.0f, scratch, (blasint)cols);
        for (int64_t r = 0; r < rows; r++) {
            double *to = g->c + (i + r) * g->n + j;
            for (int64_t k = 0; k < cols; k++) to[k] += (double)scratch[r * cols + k];
        }
    }
}

static void cross_blocks(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct cross *g = ctx;
    for (int64_t task = begin; task < end; task++) {
        int64_t i = task / g->blocks_n, j = task % g->blocks_n;
        if (!nmlp_block_is_mine(g->part, i, j, g->blocks_n, g->symmetric)) continue;
        cross_block(g, i * GRAM_BLOCK, j * GRAM_BLOCK, g->scratch + (int64_t)thread * GRAM_BLOCK * GRAM_BLOCK);
    }
}

static nmlp_status run_cross(nmlp_pool *pool, struct cross *g, nmlp_err *err) {
    g->scratch = nmlp_mem_new((size_t)nmlp_pool_threads(pool) * GRAM_BLOCK * GRAM_BLOCK, sizeof *g->scratch, err);
    if (!g->scratch) return NMLP_E_NOMEM;
    g->blocks_n = (g->n + GRAM_BLOCK - 1) / GRAM_BLOCK;
    nmlp_pool_for(pool, (g->m + GRAM_BLOCK - 1) / GRAM_BLOCK * g->blocks_n, 1, cross_blocks, g);
    nmlp_mem_free(g->scratch);
    return NMLP_OK;
}

nmlp_status nmlp_linalg_cross_add(nmlp_pool *pool, double *c, const float *y, const float *x, int64_t s, int64_t m,
                                  int64_t n, nmlp_err *err) {
    struct cross g = {.y = y, .x = x, .c = c, .s = s, .m = m, .n = n};
    return run_cross(pool, &g, err);
}

nmlp_status nmlp_linalg_blocks_add(nmlp_pool *pool, double *c, const float *y, const float *x, int64_t s, int64_t m,
                                   int64_t n, bool symmetric, nmlp_block_part part, nmlp_err *err) {
    struct cross g = {.y = y, .x = x, .c = c, .s = s, .m = m, .n = n, .symmetric = symmetric, .part = part};
    return run_cross(pool, &g, err);
}

nmlp_status nmlp_linalg_gram_add(nmlp_pool *pool, double *c, const float *x, int64_t s, int64_t n, nmlp_err *err) {
    struct cross g = {.y = x, .x = x, .c = c, .s = s, .m = n, .n = n, .symmetric = true};
    NMLP_RETURN_IF_FAILED(run_cross(pool, &g, err));
    nmlp_linalg_mirror(pool, c, n);
    return NMLP_OK;
}

/* D A or A D, in f64 or f32. */
struct weighing {
    const double *a, *d;
    int64_t rows, cols;
    bool by_rows; /* d belongs to the columns */
    double *wide;
    float *narrow;
};

static void weigh_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct weighing *w = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < w->cols; j++) {
            double value = w->a[i * w->cols + j] * (w->d ? w->d[w->by_rows ? j : i] : 1);
            if (w->wide)
                w->wide[i * w->cols + j] = value;
            else
                w->narrow[i * w->cols + j] = (float)value;
        }
    }
}

static nmlp_status weighted(nmlp_pool *pool, struct weighing *w, bool narrow, double *c, nmlp_err *err) {
    size_t n_elems = (size_t)(w->rows * w->cols);
    int64_t n = w->by_rows ? w->rows : w->cols;
    int64_t k = w->by_rows ? w->cols : w->rows;
    nmlp_status st = NMLP_OK;
    if (narrow)
        w->narrow = nmlp_mem_new_raw(n_elems, sizeof *w->narrow, err);
    else
        w->wide = nmlp_mem_new_raw(n_elems, sizeof *w->wide, err);
    if (!w->narrow && !w->wide) return NMLP_E_NOMEM;
    nmlp_pool_for(pool, w->rows, 1 + ELEMS_PER_TASK / (w->cols + 1), weigh_rows, w);
    if (narrow) {
        struct cross g = {
            .y = w->narrow, .x = w->narrow, .c = c, .s = k, .m = n, .n = n, .symmetric = true, .by_rows = w->by_rows};
        memset(c, 0, (size_t)(n * n) * sizeof *c);
        st = run_cross(pool, &g, err);
    } else {
        struct squares g = {.ta = w->by_rows ? NMLP_PLAIN : NMLP_TRANSPOSED, .n = n, .k = k, .a = w->wide, .c = c};
        nmlp_pool_for(pool, (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK, 1, squares_rows, &g);
    }
    nmlp_linalg_mirror(pool, c, n);
    nmlp_mem_free(w->narrow);
    nmlp_mem_free(w->wide);
    return st;
}

nmlp_status nmlp_linalg_weighted_squares(nmlp_pool *pool, int64_t n, int64_t k, const double *a, const double *d,
                                         bool narrow, double *c, nmlp_err *err) {
    struct weighing w = {.a = a, .d = d, .rows = k, .cols = n};
    return weighted(pool, &w, narrow, c, err);
}

nmlp_status nmlp_linalg_weighted_rows(nmlp_pool *pool, int64_t m, int64_t k, const double *a, const double *d,
                                      bool narrow, double *c, nmlp_err *err) {
    struct weighing w = {.a = a, .d = d, .rows = m, .cols = k, .by_rows = true};
    return weighted(pool, &w, narrow, c, err);
}

struct solve {
    const double *l;
    double *b;
    int64_t m, n;
    bool transposed;
};

static void solve_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct solve *s = ctx;
    (void)thread;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task * ROWS_PER_TASK;
        int64_t rows = nmlp_min(ROWS_PER_TASK, s->m - row);
        nmlp_openblas_get()->dtrsm(CblasRowMajor, CblasRight, CblasLower, s->transposed ? CblasTrans : CblasNoTrans,
                                   CblasNonUnit, (blasint)rows, (blasint)s->n, 1.0, s->l, (blasint)s->n,
                                   s->b + row * s->n, (blasint)s->n);
    }
}

void nmlp_linalg_solve_right_transposed(nmlp_pool *pool, const double *l, double *b, int64_t m, int64_t n) {
    struct solve s = {.l = l, .b = b, .m = m, .n = n, .transposed = true};
    nmlp_pool_for(pool, (m + ROWS_PER_TASK - 1) / ROWS_PER_TASK, 1, solve_rows, &s);
}

void nmlp_linalg_solve_right(nmlp_pool *pool, const double *l, double *b, int64_t m, int64_t n) {
    struct solve s = {.l = l, .b = b, .m = m, .n = n};
    nmlp_pool_for(pool, (m + ROWS_PER_TASK - 1) / ROWS_PER_TASK, 1, solve_rows, &s);
}
