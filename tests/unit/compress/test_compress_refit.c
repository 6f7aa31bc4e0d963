/* Reduced-rank regression against problems whose answer is known. */
#include "lib/testing.h"

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "compress/refit/refit_solve.h"
#include "linalg/linalg.h"

enum { N = 20, M = 30, S = 3000 };

struct data {
    double w[M * N];
    double z[S][N], x[S][N];
    double gram[N * N], cross[N * N];
};

static struct data *new_data(double drift) {
    nmlp_rng rng;
    nmlp_err err;
    struct data *d = nmlp_mem_new(1, sizeof *d, &err);
    assert_non_null(d);
    nmlp_rng_seed(&rng, 7);
    for (int i = 0; i < M * N; i++) d->w[i] = nmlp_rng_normal(&rng);
    for (int t = 0; t < S; t++) {
        for (int i = 0; i < N; i++) d->z[t][i] = nmlp_rng_normal(&rng) / (1 + 0.2 * i);
        for (int i = 0; i < N; i++)
            d->x[t][i] = d->z[t][i] + drift * (d->z[t][(i + 1) % N] + 0.3 * nmlp_rng_normal(&rng));
    }
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            for (int t = 0; t < S; t++) {
                d->gram[i * N + j] += d->z[t][i] * d->z[t][j] / S;
                d->cross[i * N + j] += d->x[t][i] * d->z[t][j] / S;
            }
        }
    }
    return d;
}

/* Mean |W x - u v z|^2 */
static double output_error(const struct data *d, const double *ut, const double *v, int rank) {
    double total = 0;
    for (int t = 0; t < S; t++) {
        double inner[N];
        for (int k = 0; k < rank; k++) {
            inner[k] = 0;
            for (int j = 0; j < N; j++) inner[k] += v[k * N + j] * d->z[t][j];
        }
        for (int i = 0; i < M; i++) {
            double e = 0;
            for (int j = 0; j < N; j++) e += d->w[i * N + j] * d->x[t][j];
            for (int k = 0; k < rank; k++) e -= ut[k * M + i] * inner[k];
            total += e * e / S;
        }
    }
    return total;
}

static void solve(const struct data *d, double ridge, int rank, double *ut, double *v) {
    nmlp_err err;
    nmlp_refit_tall problem = {.n = N,
                               .rows = {M},
                               .n_matrices = 1,
                               .w = {d->w},
                               .views = {nmlp_view_2d(d->w, NMLP_DTYPE_F32, M, N)},
                               .gram = d->gram,
                               .cross = d->cross,
                               .ridge = ridge,
                               .rank = rank};
    nmlp_assert_ok(nmlp_refit_tall_solve(&problem, ut, v, NULL, &err), &err);
}

static void full_rank_without_drift_is_the_matrix_itself(void **state) {
    struct data *d = new_data(0);
    double ut[N * M], v[N * N];
    (void)state;
    solve(d, 0.5, N, ut, v); /* anchored: even a strong ridge pulls to W, not to zero */
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < N; k++) sum += ut[k * M + i] * v[k * N + j];
            assert_true(fabs(sum - d->w[i * N + j]) < 1e-9);
        }
    }
    nmlp_mem_free(d);
}

static void no_perturbation_beats_the_refit_and_a_strong_anchor_gives_it_up(void **state) {
    enum { RANK = 8 };
    struct data *d = new_data(0.5);
    double ut[RANK * M], v[RANK * N], held[RANK * M], held_v[RANK * N];
    nmlp_rng rng;
    (void)state;
    solve(d, 0, RANK, ut, v);
    solve(d, 100, RANK, held, held_v);
    double best = output_error(d, ut, v, RANK);
    assert_true(best < output_error(d, held, held_v, RANK));
    nmlp_rng_seed(&rng, 8);
    for (int trial = 0; trial < 10; trial++) { /* a minimum: every step away from it costs */
        double moved[RANK * M];
        for (int i = 0; i < RANK * M; i++) moved[i] = ut[i] + 0.01 * nmlp_rng_normal(&rng);
        assert_true(output_error(d, moved, v, RANK) > best * (1 - 1e-9));
    }
    nmlp_mem_free(d);
}

static void down_finds_a_planted_low_rank_map(void **state) {
    enum { OUT = 12, RANK = 3 };
    struct data *d = new_data(0);
    double planted[OUT * N] = {0}, cross[OUT * N] = {0}, gram[N * N], zero[OUT * N] = {0};
    double ut[RANK * OUT], v[RANK * N], dense[OUT * N];
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 9);
    for (int k = 0; k < RANK; k++) {
        double a[OUT], b[N];
        for (int i = 0; i < OUT; i++) a[i] = nmlp_rng_normal(&rng);
        for (int j = 0; j < N; j++) b[j] = nmlp_rng_normal(&rng);
        for (int i = 0; i < OUT; i++)
            for (int j = 0; j < N; j++) planted[i * N + j] += a[i] * b[j];
    }
    for (int pass = 0; pass < 2; pass++) { /* factors, then the dense solution */
        memcpy(gram, d->gram, sizeof gram);
        memset(cross, 0, sizeof cross);
        for (int i = 0; i < OUT; i++)
            for (int j = 0; j < N; j++)
                for (int k = 0; k < N; k++) cross[i * N + j] += planted[i * N + k] * d->gram[k * N + j];
        nmlp_refit_down problem = {
            .m = OUT, .n = N, .w = zero, .gram = gram, .cross = cross, .ridge = 0, .rank = pass ? 0 : RANK};
        nmlp_assert_ok(nmlp_refit_down_solve(&problem, ut, pass ? dense : v, NULL, &err), &err);
        for (int i = 0; i < OUT; i++) {
            for (int j = 0; j < N; j++) {
                double sum = pass ? dense[i * N + j] : 0;
                for (int k = 0; k < RANK && !pass; k++) sum += ut[k * OUT + i] * v[k * N + j];
                assert_true(fabs(sum - planted[i * N + j]) < 1e-3); /* the smallest ridge there is: 1e-6 of the mean */
            }
        }
    }
    nmlp_mem_free(d);
}

static void dead_inputs_leave_the_original_there(void **state) {
    double gram[4] = {1, 0, 0, 0}; /* channel 1 never moves */
    double cross[2] = {2, 0};
    double w[2] = {1, 5};
    double ut[1], v[2];
    nmlp_err err;
    (void)state;
    nmlp_refit_down problem = {.m = 1, .n = 2, .w = w, .gram = gram, .cross = cross, .ridge = 0, .rank = 1};
    nmlp_assert_ok(nmlp_refit_down_solve(&problem, ut, v, NULL, &err), &err);
    assert_true(fabs(ut[0] * v[0] - 2) < 1e-5);
    assert_true(fabs(ut[0] * v[1] - 5) < 1e-5);
}

int main(void) {
    (void)nmlp_linalg_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_rank_without_drift_is_the_matrix_itself),
        cmocka_unit_test(no_perturbation_beats_the_refit_and_a_strong_anchor_gives_it_up),
        cmocka_unit_test(down_finds_a_planted_low_rank_map),
        cmocka_unit_test(dead_inputs_leave_the_original_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
