/* What a matrix is rounded towards: half way from itself to the outputs of the model as it was, by an inverse in f64.
 */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "compress/quantize/quant_layer.h"
#include "lib/testing.h"
#include "tensor/quant.h"

enum { N = 12, K = 32, TOKENS = 400 };

struct problem {
    float w[N * K];
    double second[K * K], drift[K * K], target[N * K];
};

/* Gauss-Jordan. */
static void invert(double *a, int n) {
    for (int p = 0; p < n; p++) {
        double pivot = a[p * n + p];
        a[p * n + p] = 1;
        for (int j = 0; j < n; j++) a[p * n + j] /= pivot;
        for (int i = 0; i < n; i++) {
            if (i == p) continue;
            double f = a[i * n + p];
            a[i * n + p] = 0;
            for (int j = 0; j < n; j++) a[i * n + j] -= f * a[p * n + j];
        }
    }
}

/* Inputs x of the quantised model, d of the dense one: x mixed with its neighbours. */
static struct problem *new_problem(void) {
    struct problem *p = calloc(1, sizeof *p);
    nmlp_rng rng;
    double inverse[K * K], mean = 0;
    nmlp_rng_seed(&rng, 3);
    for (int i = 0; i < N * K; i++) p->w[i] = (float)nmlp_rng_normal(&rng);
    for (int t = 0; t < TOKENS; t++) {
        double x[K], d[K], last = 0;
        for (int j = 0; j < K; j++) x[j] = last = 0.5 * last + nmlp_rng_normal(&rng);
        for (int j = 0; j < K; j++) d[j] = x[j] + 0.3 * x[(j + 1) % K] - 0.2 * x[(j + 5) % K];
        for (int i = 0; i < K; i++)
            for (int j = 0; j < K; j++) {
                p->second[i * K + j] += x[i] * x[j] / TOKENS;
                p->drift[i * K + j] += (d[i] - x[i]) * x[j] / TOKENS;
            }
    }
    memcpy(inverse, p->second, sizeof inverse);
    for (int i = 0; i < K; i++) mean += p->second[i * K + i] / K;
    for (int i = 0; i < K; i++) inverse[i * K + i] += 0.01 * mean;
    invert(inverse, K);
    for (int n = 0; n < N; n++)
        for (int j = 0; j < K; j++) {
            double shift = 0;
            for (int a = 0; a < K; a++)
                for (int b = 0; b < K; b++) shift += (double)p->w[n * K + a] * p->drift[a * K + b] * inverse[b * K + j];
            p->target[n * K + j] = (double)p->w[n * K + j] + 0.5 * TOKENS / (TOKENS + 4 * K) * shift;
        }
    return p;
}

static double distance(const double *second, const double *from, const nmlp_view *q) {
    double sum = 0;
    for (int n = 0; n < N; n++) {
        float row[K];
        nmlp_quant_row_to_f32(row, q, n);
        for (int i = 0; i < K; i++)
            for (int j = 0; j < K; j++)
                sum += (from[n * K + i] - (double)row[i]) * second[i * K + j] * (from[n * K + j] - (double)row[j]);
    }
    return sum;
}

static void check(bool drifts) {
    struct problem *p = new_problem();
    nmlp_arena arena;
    nmlp_err err;
    nmlp_factors source[NMLP_MLP_MATRICES] = {0}, made[NMLP_MLP_MATRICES];
    double second[K * K], drift[K * K], dense[N * K];
    nmlp_quant_format formats[NMLP_QUANT_MATRICES];
    nmlp_quant_moments moments = {.tokens = TOKENS};
    nmlp_arena_init(&arena);
    memcpy(second, p->second, sizeof second);
    memcpy(drift, p->drift, sizeof drift);
    for (int i = 0; i < N * K; i++) dense[i] = (double)p->w[i];
    for (int i = 0; i < NMLP_QUANT_MATRICES; i++) formats[i] = (nmlp_quant_format){.dtype = NMLP_DTYPE_BF16};
    formats[NMLP_QUANT_DOWN].dtype = NMLP_DTYPE_Q8;
    source[NMLP_MLP_DOWN].w = nmlp_view_2d(p->w, NMLP_DTYPE_F32, N, K);
    moments.second[NMLP_QUANT_MLP_ACT] = second;
    if (drifts) moments.drift[NMLP_QUANT_MLP_ACT] = drift;
    nmlp_quant_maker maker = {.formats = formats, .moments = &moments, .arena = &arena};
    memcpy(made, source, sizeof made);
    nmlp_assert_ok(nmlp_quant_mlp_make(made, source, false, &maker, &err), &err);
    const nmlp_view *q = &made[NMLP_MLP_DOWN].w;
    assert_int_equal(q->dtype, NMLP_DTYPE_Q8);
    double aimed = distance(p->second, p->target, q), own = distance(p->second, dense, q);
    if (drifts)
        assert_true(aimed < 3e-3 * own);
    else
        assert_true(own < 3e-3 * aimed);
    nmlp_arena_fini(&arena);
    free(p);
}

static void rounding_aims_half_way(void **state) {
    (void)state;
    check(true);
}

static void without_the_dense_model_it_aims_at_the_matrix(void **state) {
    (void)state;
    check(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_aims_half_way),
        cmocka_unit_test(without_the_dense_model_it_aims_at_the_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
