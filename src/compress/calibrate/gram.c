#include "compress/calibrate/gram.h"

#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "linalg/linalg.h"
#include "tensor/dtype.h"

enum { ROWS_PER_TASK = 64, ELEMS_PER_TASK = 1 << 16 };

void nmlp_token_weights(float *weights, const float *rows, int64_t s, int64_t h) {
    double sum = 0;
    for (int64_t t = 0; t < s; t++) {
        double norm2 = 0;
        for (int64_t i = 0; i < h; i++) norm2 += (double)rows[t * h + i] * (double)rows[t * h + i];
        weights[t] = norm2 > 0 ? (float)(1 / sqrt(norm2)) : 0;
        sum += (double)weights[t] * (double)weights[t];
    }
    double scale = sum > 0 ? sqrt((double)s / sum) : 0;
    for (int64_t t = 0; t < s; t++) weights[t] = sum > 0 ? (float)(scale * (double)weights[t]) : 1.0f;
}

struct norms {
    const float *rows;
    int64_t h;
    double *norm2; /* [S] */
};

static void square_norms(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct norms *n = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        double sum[4] = {0};
        const float *row = n->rows + t * n->h;
        int64_t i = 0;
        for (; i + 4 <= n->h; i += 4)
            for (int k = 0; k < 4; k++) sum[k] += (double)row[i + k] * (double)row[i + k];
        for (; i < n->h; i++) sum[0] += (double)row[i] * (double)row[i];
        n->norm2[t] = sum[0] + sum[1] + (sum[2] + sum[3]);
    }
}

/* Capping shrinks the sum itself, so the limit is found again until nothing moves: at most a few rounds, as every round
 * takes the excess of the same few tokens away. */
nmlp_status nmlp_gram_cap_tokens(nmlp_pool *pool, float *rows, int64_t s, int64_t h, double share, int64_t *n_capped,
                                 nmlp_err *err) {
    *n_capped = 0;
    if (!(share > 0) || share * (double)s <= 1) return NMLP_OK; /* with so few tokens every one is above the share */
    struct norms n = {.rows = rows, .h = h, .norm2 = nmlp_mem_new((size_t)s, sizeof(double), err)};
    if (!n.norm2) return NMLP_E_NOMEM;
    nmlp_pool_for(pool, s, ROWS_PER_TASK, square_norms, &n);
    bool moved = true;
    for (int round = 0; round < 8 && moved; round++) {
        double total = 0;
        moved = false;
        for (int64_t t = 0; t < s; t++) total += n.norm2[t];
        for (int64_t t = 0; t < s; t++) {
            if (n.norm2[t] <= 1.01 * share * total) continue;
            float scale = (float)sqrt(share * total / n.norm2[t]);
            for (int64_t i = 0; i < h; i++) rows[t * h + i] *= scale;
            square_norms(&n, t, t + 1, 0);
            moved = true;
            if (round == 0) ++*n_capped;
        }
    }
    nmlp_mem_free(n.norm2);
    return NMLP_OK;
}

/* ---- X^T X and Y^T X ---- */

enum { TOKENS = 2048, ROWS = 512, COLUMNS = 512, SIDE = 64, ADDED_ROWS_PER_TASK = 32 };

/* Tokens become columns: Y as f32 rows of a matmul, X as its bf16 weight. */
struct transposing {
    const float *from; /* [tokens, n] */
    int64_t tokens, n;
    float *wide;      /* [n, tokens], or NULL */
    uint16_t *narrow; /* the same in bf16, or NULL */
};

/* Squares whose lines stay in L1 while they are written in columns. */
static void transpose_columns(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct transposing *t = ctx;
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
        nmlp_pool_for(k->pool, n_rows, ADDED_ROWS_PER_TASK, add_rows, &adding);
    }
out:
    nmlp_mem_free(workspace);
    nmlp_linear_destroy(linear);
    return st;
}

static nmlp_status add_chunk(const struct chunk *k, double *c, const float *y, const float *x, int64_t tokens,
                             nmlp_err *err) {
    struct transposing columns = {.from = x, .tokens = tokens, .n = k->n, .narrow = k->xt};
    struct transposing rows = {.from = y, .tokens = tokens, .n = k->m, .wide = k->yt};
    nmlp_pool_for(k->pool, k->n, SIDE, transpose_columns, &columns);
    nmlp_pool_for(k->pool, k->m, SIDE, transpose_columns, &rows);
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

nmlp_status nmlp_gram_add(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s, int64_t n,
                          nmlp_err *err) {
    if (!nmlp_kernels_rounds_to_bf16(kernels)) return nmlp_linalg_gram_add(pool, c, x, s, n, err);
    NMLP_RETURN_IF_FAILED(add_rounded(kernels, pool, c, x, x, s, n, n, true, err));
    nmlp_linalg_mirror(pool, c, n);
    return NMLP_OK;
}

nmlp_status nmlp_gram_add_cross(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *y, const float *x,
                                int64_t s, int64_t m, int64_t n, nmlp_err *err) {
    if (nmlp_kernels_rounds_to_bf16(kernels)) return add_rounded(kernels, pool, c, y, x, s, m, n, false, err);
    return nmlp_linalg_cross_add(pool, c, y, x, s, m, n, err);
}

/* ---- means and shrinking ---- */

struct division {
    double *c;
    double by;
};

static void divide_elems(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct division *d = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) d->c[i] /= d->by;
}

nmlp_status nmlp_gram_mean(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s,
                           int64_t n, nmlp_err *err) {
    memset(c, 0, (size_t)(n * n) * sizeof *c);
    NMLP_RETURN_IF_FAILED(nmlp_gram_add(kernels, pool, c, x, s, n, err));
    struct division division = {.c = c, .by = (double)s};
    nmlp_pool_for(pool, n * n, ELEMS_PER_TASK, divide_elems, &division);
    return NMLP_OK;
}

void nmlp_gram_shrink(double *c, int64_t n, int64_t s) {
    double a = (double)s / (double)(s + n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            if (i != j) c[i * n + j] *= a;
}

nmlp_status nmlp_gram_shrink_output(nmlp_pool *pool, double *k, const double *w, const double *c, int64_t m, int64_t n,
                                    int64_t s, bool narrow, nmlp_err *err) {
    double a = (double)s / (double)(s + n);
    nmlp_status st = NMLP_E_NOMEM;
    double *prior = nmlp_mem_new((size_t)(m * m), sizeof *prior, err);
    double *root = nmlp_mem_new((size_t)n, sizeof *root, err);
    if (prior && root) {
        for (int64_t j = 0; j < n; j++) root[j] = sqrt(c[j]);
        st = nmlp_linalg_weighted_rows(pool, m, n, w, root, narrow, prior, err);
        for (int64_t i = 0; st == NMLP_OK && i < m * m; i++) k[i] = a * k[i] + (1 - a) * prior[i];
    }
    nmlp_mem_free(prior);
    nmlp_mem_free(root);
    return st;
}
