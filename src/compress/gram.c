#include "compress/gram.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "linalg/linalg.h"

static double square_norm(const float *row, int64_t h) {
    double sum = 0;
    for (int64_t i = 0; i < h; i++) sum += (double)row[i] * (double)row[i];
    return sum;
}

/* Capping shrinks the sum itself, so the limit is found again until nothing moves: at most a few rounds, as every round
 * takes the excess of the same few tokens away. */
int64_t nmlp_gram_cap_tokens(float *rows, int64_t s, int64_t h, double share) {
    int64_t n_capped = 0;
    if (!(share > 0) || share * (double)s <= 1) return 0; /* with so few tokens every one is above the share */
    for (int round = 0; round < 8; round++) {
        double total = 0;
        bool moved = false;
        for (int64_t t = 0; t < s; t++) total += square_norm(rows + t * h, h);
        for (int64_t t = 0; t < s; t++) {
            double norm = square_norm(rows + t * h, h);
            if (norm <= 1.01 * share * total) continue;
            float scale = (float)sqrt(share * total / norm);
            for (int64_t i = 0; i < h; i++) rows[t * h + i] *= scale;
            moved = true;
            if (round == 0) n_capped++;
        }
        if (!moved) break;
    }
    return n_capped;
}

nmlp_status nmlp_gram_of(nmlp_pool *pool, double *c, const float *x, int64_t s, int64_t n, nmlp_err *err) {
    memset(c, 0, (size_t)(n * n) * sizeof *c);
    NMLP_RETURN_IF_FAILED(nmlp_linalg_gram_add(pool, c, x, s, n, err));
    for (int64_t i = 0; i < n * n; i++) c[i] /= (double)s;
    return NMLP_OK;
}

void nmlp_gram_shrink(double *c, int64_t n, int64_t s) {
    double a = (double)s / (double)(s + n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            if (i != j) c[i * n + j] *= a;
}

nmlp_status nmlp_gram_shrink_output(nmlp_pool *pool, double *k, const double *w, const double *c, int64_t m, int64_t n,
                                    int64_t s, nmlp_err *err) {
    double a = (double)s / (double)(s + n);
    nmlp_status st = NMLP_OK;
    double *scaled = nmlp_mem_new((size_t)(m * n), sizeof *scaled, err);
    double *prior = nmlp_mem_new((size_t)(m * m), sizeof *prior, err);
    if (!scaled || !prior) {
        st = NMLP_E_NOMEM;
    } else {
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) scaled[i * n + j] = w[i * n + j] * c[j];
        nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_TRANSPOSED, m, m, n, scaled, w, prior);
        for (int64_t i = 0; i < m * m; i++) k[i] = a * k[i] + (1 - a) * prior[i];
    }
    nmlp_mem_free(scaled);
    nmlp_mem_free(prior);
    return st;
}
