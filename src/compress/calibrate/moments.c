#include "compress/calibrate/moments.h"

#include "base/ints.h"
#include "base/mem.h"
#include "linalg/linalg.h"
#include "tensor/dtype.h"

enum { TOKENS = 2048, ROWS = 512, COLUMNS = 512, SIDE = 64, ROWS_PER_TASK = 32 };

/* Tokens become columns: Y as f32 rows of a matmul, X as its bf16 weight. */
struct turning {
    const float *from; /* [tokens, n] */
    int64_t tokens, n;
    float *wide;      /* [n, tokens], or NULL */
    uint16_t *narrow; /* the same in bf16, or NULL */
};

/* Squares whose lines stay in L1 while they are written in columns. */
static void turn_columns(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct turning *t = ctx;
    (void)thread;
    for (int64_t first = 0; first < t->tokens; first += SIDE) {
        int64_t last = nmlp_min(first + SIDE, t->tokens);
        for (int64_t j = begin; j < end; j++) {
            for (int64_t i = first; i < last; i++) {
                float value = t->from[i * t->n + j];
                if (t->wide) t->wide[j * t->tokens + i] = value;
                if (t->narrow) t->narrow[j * t->tokens + i] = nmlp_f32_to_bf16(value);
            }
        }
    }
}

struct adding {
    double *c; /* rows c_stride apart */
    int64_t c_stride, n;
    const float *part; /* [rows, n] */
};

static void add_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct adding *a = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < a->n; j++) a->c[i * a->c_stride + j] += (double)a->part[i * a->n + j];
}

struct chunk {
    const nmlp_kernels *kernels;
    nmlp_pool *pool;
    int64_t m, n;
    bool symmetric; /* only what lies on and below the diagonal */
    float *yt;      /* [m, TOKENS] */
    uint16_t *xt;   /* [n, TOKENS] */
    float *part;    /* [ROWS, COLUMNS] */
};

/* Some columns of C: their rows of xt are the weight of a matmul. */
static nmlp_status add_columns(const struct chunk *k, double *c, int64_t first, int64_t tokens, nmlp_err *err) {
    nmlp_linear *linear = NULL;
    void *workspace = NULL;
    nmlp_status st = NMLP_OK;
    int64_t n_columns = nmlp_min(COLUMNS, k->n - first);
    nmlp_view no_bias = {0}, weight = nmlp_view_2d(k->xt + first * tokens, NMLP_DTYPE_BF16, n_columns, tokens);
    NMLP_TRY(nmlp_linear_create(&linear, k->kernels, &weight, &no_bias, k->pool, err));
    workspace = nmlp_mem_new(nmlp_linear_workspace_bytes(linear, ROWS, nmlp_pool_threads(k->pool)), 1, err);
    if (!workspace) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    for (int64_t i = k->symmetric ? first : 0; i < k->m; i += ROWS) {
        int64_t n_rows = nmlp_min(ROWS, k->m - i);
        struct adding adding = {.c = c + i * k->n + first, .c_stride = k->n, .n = n_columns, .part = k->part};
        nmlp_linear_run(linear, k->part, k->yt + i * tokens, n_rows, workspace, k->pool);
        nmlp_pool_for(k->pool, n_rows, ROWS_PER_TASK, add_rows, &adding);
    }
out:
    nmlp_mem_free(workspace);
    nmlp_linear_destroy(linear);
    return st;
}

static nmlp_status add_chunk(const struct chunk *k, double *c, const float *y, const float *x, int64_t tokens,
                             nmlp_err *err) {
    struct turning columns = {.from = x, .tokens = tokens, .n = k->n, .narrow = k->xt};
    struct turning rows = {.from = y, .tokens = tokens, .n = k->m, .wide = k->yt};
    nmlp_pool_for(k->pool, k->n, SIDE, turn_columns, &columns);
    nmlp_pool_for(k->pool, k->m, SIDE, turn_columns, &rows);
    for (int64_t j = 0; j < k->n; j += COLUMNS) NMLP_RETURN_IF_FAILED(add_columns(k, c, j, tokens, err));
    return NMLP_OK;
}

static nmlp_status add_rounded(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *y, const float *x,
                               int64_t s, int64_t m, int64_t n, bool symmetric, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct chunk k = {.kernels = kernels,
                      .pool = pool,
                      .m = m,
                      .n = n,
                      .symmetric = symmetric,
                      .yt = nmlp_mem_new((size_t)(m * TOKENS), sizeof *k.yt, err),
                      .xt = nmlp_mem_new((size_t)(n * TOKENS), sizeof *k.xt, err),
                      .part = nmlp_mem_new((size_t)ROWS * COLUMNS, sizeof *k.part, err)};
    if (!k.yt || !k.xt || !k.part) st = NMLP_E_NOMEM;
    for (int64_t t = 0; st == NMLP_OK && t < s; t += TOKENS)
        st = add_chunk(&k, c, y + t * m, x + t * n, nmlp_min(TOKENS, s - t), err);
    nmlp_mem_free(k.yt);
    nmlp_mem_free(k.xt);
    nmlp_mem_free(k.part);
    return st;
}

nmlp_status nmlp_moments_gram(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s,
                              int64_t n, nmlp_err *err) {
    if (!nmlp_kernels_rounds_to_bf16(kernels)) return nmlp_linalg_gram_add(pool, c, x, s, n, err);
    NMLP_RETURN_IF_FAILED(add_rounded(kernels, pool, c, x, x, s, n, n, true, err));
    nmlp_linalg_mirror(pool, c, n);
    return NMLP_OK;
}

nmlp_status nmlp_moments_cross(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *y, const float *x,
                               int64_t s, int64_t m, int64_t n, nmlp_err *err) {
    if (nmlp_kernels_rounds_to_bf16(kernels)) return add_rounded(kernels, pool, c, y, x, s, m, n, false, err);
    return nmlp_linalg_cross_add(pool, c, y, x, s, m, n, err);
}
