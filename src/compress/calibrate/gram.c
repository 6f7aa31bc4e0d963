#include "compress/calibrate/gram.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compress/calibrate/moments.h"
#include "linalg/linalg.h"

enum { ROWS_PER_TASK = 64, ELEMS_PER_TASK = 1 << 16 };

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

struct division {
    double *c;
    double by;
};

static void divide_elems(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct division *d = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) d->c[i] /= d->by;
}

nmlp_status nmlp_gram_of(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s, int64_t n,
                         nmlp_err *err) {
    memset(c, 0, (size_t)(n * n) * sizeof *c);
    NMLP_RETURN_IF_FAILED(nmlp_moments_gram(kernels, pool, c, x, s, n, err));
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
