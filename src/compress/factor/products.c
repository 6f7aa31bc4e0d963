#include "compress/factor/products.h"

#include "base/ints.h"
#include "base/mem.h"
#include "tensor/dtype.h"

enum { ROWS = 512, SIDE = 64, PIECE = 1024 };

struct widening {
    double *dst;
    const nmlp_view *view;
};

static void widen_elems(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct widening *w = ctx;
    const char *from = w->view->data;
    float piece[PIECE];
    (void)thread;
    for (int64_t i = begin; i < end; i += PIECE) {
        int64_t m = end - i < PIECE ? end - i : PIECE;
        nmlp_to_f32(piece, from + (size_t)i * nmlp_dtype_bytes(w->view->dtype), w->view->dtype, (size_t)m);
        for (int64_t j = 0; j < m; j++) w->dst[i + j] = (double)piece[j];
    }
}

void nmlp_widen(nmlp_pool *pool, double *dst, const nmlp_view *view) {
    struct widening w = {.dst = dst, .view = view};
    nmlp_pool_for(pool, nmlp_view_elems(view), 64 * PIECE, widen_elems, &w);
}

void nmlp_narrow(void *dst, nmlp_dtype dtype, const double *src, int64_t n) {
    float piece[PIECE];
    char *to = dst;
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = n - i < PIECE ? n - i : PIECE;
        for (int64_t j = 0; j < m; j++) piece[j] = (float)src[i + j];
        nmlp_from_f32(to + (size_t)i * nmlp_dtype_bytes(dtype), dtype, piece, (size_t)m);
    }
}

struct transposing {
    const uint16_t *from; /* [n,k] */
    uint16_t *to;         /* [k,n] */
    int64_t n, k;
};

/* Squares that stay in L1 while they are written in columns. */
static void transpose_columns(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct transposing *t = ctx;
    (void)thread;
    for (int64_t first = 0; first < t->n; first += SIDE) {
        int64_t last = nmlp_min(first + SIDE, t->n);
        for (int64_t j = begin; j < end; j++)
            for (int64_t i = first; i < last; i++) t->to[j * t->n + i] = t->from[i * t->k + j];
    }
}

/* Rows of A and what bf16 leaves of them, one block above the other. */
struct splitting {
    const double *a;
    float *rows; /* [2*n_rows, k] */
    int64_t n_rows, k;
};

static void split_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct splitting *s = ctx;
    (void)thread;
    for (int64_t i = begin * s->k; i < end * s->k; i++) {
        float high = nmlp_bf16_to_f32(nmlp_f32_to_bf16((float)s->a[i]));
        s->rows[i] = high;
        s->rows[s->n_rows * s->k + i] = (float)(s->a[i] - (double)high);
    }
}

struct joining {
    const float *part; /* [2*n_rows, n] */
    double *c;
    int64_t n_rows, n, c_stride;
};

static void join_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct joining *j = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const float *high = j->part + i * j->n, *low = high + j->n_rows * j->n;
        for (int64_t x = 0; x < j->n; x++) j->c[i * j->c_stride + x] = (double)high[x] + (double)low[x];
    }
}

struct buffers {
    float *rows; /* [2*ROWS, k] */
    float *part; /* [2*ROWS, n] */
    void *workspace;
};

static void run_blocks(const nmlp_linear *linear, struct buffers *b, nmlp_pool *pool, int64_t m, int64_t n, int64_t k,
                       const double *a, double *c, int64_t c_stride) {
    for (int64_t i = 0; i < m; i += ROWS) {
        int64_t n_rows = nmlp_min(ROWS, m - i);
        struct splitting split = {.a = a + i * k, .rows = b->rows, .n_rows = n_rows, .k = k};
        struct joining join = {.part = b->part, .c = c + i * c_stride, .n_rows = n_rows, .n = n, .c_stride = c_stride};
        nmlp_pool_for(pool, n_rows, SIDE, split_rows, &split);
        nmlp_linear_run(linear, b->part, b->rows, 2 * n_rows, b->workspace, pool);
        nmlp_pool_for(pool, n_rows, SIDE, join_rows, &join);
    }
}

/* w [n,k] in bf16. */
static nmlp_status multiply_split(const nmlp_kernels *kernels, nmlp_pool *pool, const nmlp_view *w, int64_t m,
                                  const double *a, double *c, int64_t c_stride, nmlp_err *err) {
    int64_t n = w->shape[0], k = w->shape[1];
    nmlp_view no_bias = {0};
    nmlp_linear *linear = NULL;
    struct buffers b = {0};
    NMLP_RETURN_IF_FAILED(nmlp_linear_create(&linear, kernels, w, &no_bias, pool, err));
    b.rows = nmlp_mem_new((size_t)(2 * ROWS * k), sizeof *b.rows, err);
    b.part = nmlp_mem_new((size_t)(2 * ROWS * n), sizeof *b.part, err);
    b.workspace = nmlp_mem_new(nmlp_linear_workspace_bytes(linear, 2 * ROWS, nmlp_pool_threads(pool)), 1, err);
    bool ready = b.rows && b.part && b.workspace;
    if (ready) run_blocks(linear, &b, pool, m, n, k, a, c, c_stride);
    nmlp_mem_free(b.rows);
    nmlp_mem_free(b.part);
    nmlp_mem_free(b.workspace);
    nmlp_linear_destroy(linear);
    return ready ? NMLP_OK : NMLP_E_NOMEM;
}

static nmlp_status multiply_transposed(const nmlp_weight_product *p, nmlp_pool *pool, int64_t m, const double *a,
                                       double *c, int64_t c_stride, nmlp_err *err) {
    struct transposing t = {.from = p->view->data, .n = p->view->shape[0], .k = p->view->shape[1]};
    t.to = nmlp_mem_new((size_t)(t.n * t.k), sizeof *t.to, err);
    if (!t.to) return NMLP_E_NOMEM;
    nmlp_pool_for(pool, t.k, SIDE, transpose_columns, &t);
    nmlp_view transposed_view = nmlp_view_2d(t.to, NMLP_DTYPE_BF16, t.k, t.n);
    nmlp_status st = multiply_split(p->kernels, pool, &transposed_view, m, a, c, c_stride, err);
    nmlp_mem_free(t.to);
    return st;
}

nmlp_status nmlp_weight_multiply(const nmlp_weight_product *p, nmlp_pool *pool, int64_t m, const double *a, double *c,
                                 int64_t c_stride, nmlp_err *err) {
    int64_t n = p->view->shape[p->transposed ? 1 : 0], k = p->view->shape[p->transposed ? 0 : 1];
    nmlp_trans tb = p->transposed ? NMLP_PLAIN : NMLP_TRANSPOSED;
    if (p->kernels && nmlp_kernels_rounds_to_bf16(p->kernels) && p->view->dtype == NMLP_DTYPE_BF16)
        return p->transposed ? multiply_transposed(p, pool, m, a, c, c_stride, err)
                             : multiply_split(p->kernels, pool, p->view, m, a, c, c_stride, err);
    if (nmlp_dtype_bytes(p->view->dtype) == 2)
        return nmlp_linalg_gemm_f32(pool, NMLP_PLAIN, tb, m, n, k, a, p->wide, c, c_stride, err);
    nmlp_linalg_gemm_into(pool, NMLP_PLAIN, tb, m, n, k, a, p->wide, c, c_stride);
    return NMLP_OK;
}
