/* linalg against plain loops in double precision, and its promise of equal bits for any number of threads. */
#include "lib/testing.h"
#include "lib/truth.h"

#include <cblas.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "linalg/linalg.h"

static double *random_matrix(nmlp_rng *rng, int64_t n) {
    nmlp_err err;
    double *a = nmlp_mem_new((size_t)n, sizeof *a, &err);
    assert_non_null(a);
    for (int64_t i = 0; i < n; i++) a[i] = nmlp_rng_normal(rng);
    return a;
}

static void gemm_equals_the_triple_loop_in_every_orientation(void **state) {
    enum { M = 150, N = 37, K = 41 }; /* more than one block of rows, nothing divides */
    nmlp_rng rng;
    (void)state;
    nmlp_rng_seed(&rng, 1);
    double *a = random_matrix(&rng, M * K);
    double *b = random_matrix(&rng, K * N);
    double *c = random_matrix(&rng, M * N);
    double *narrow = random_matrix(&rng, M * N);
    nmlp_err err;
    for (int ta = 0; ta < 2; ta++) {
        for (int tb = 0; tb < 2; tb++) {
            nmlp_linalg_gemm(NULL, (nmlp_trans)ta, (nmlp_trans)tb, M, N, K, a, b, c);
            nmlp_assert_ok(nmlp_linalg_gemm_f32(NULL, (nmlp_trans)ta, (nmlp_trans)tb, M, N, K, a, b, narrow, N, &err),
                           &err);
            for (int i = 0; i < M; i++) {
                for (int j = 0; j < N; j++) {
                    double sum = 0;
                    for (int k = 0; k < K; k++)
                        sum += (ta ? a[k * M + i] : a[i * K + k]) * (tb ? b[j * K + k] : b[k * N + j]);
                    assert_true(fabs(sum - c[i * N + j]) < 1e-12 * K);     /* K products of size 1 at 2^-53 each */
                    assert_true(fabs(sum - narrow[i * N + j]) < 1e-6 * K); /* the same at 2^-24 */
                }
            }
        }
    }
    nmlp_mem_free(a);
    nmlp_mem_free(b);
    nmlp_mem_free(c);
    nmlp_mem_free(narrow);
}

/* Both orders, with and without weights, in both precisions, against plain sums. */
static void weighted_squares_equal_plain_sums(void **state) {
    enum { N = 300, K = 410 }; /* two blocks of rows, the last one short, and two runs of the reduction */
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 9);
    double *a = random_matrix(&rng, K * N);
    double *d = random_matrix(&rng, K);
    double *got = random_matrix(&rng, N * N);
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int run = 0; run < 8; run++) {
        bool narrow = run & 1, by_rows = run & 2;
        const double *weights = by_rows || (run & 4) ? d : NULL;
        if (by_rows)
            nmlp_assert_ok(nmlp_linalg_weighted_rows(pool, N, K, a, weights, narrow, got, &err), &err);
        else
            nmlp_assert_ok(nmlp_linalg_weighted_squares(pool, N, K, a, weights, narrow, got, &err), &err);
        for (int i = 0; i < N; i += 7) {
            for (int j = 0; j < N; j++) {
                double sum = 0;
                for (int k = 0; k < K; k++) {
                    double square = weights ? d[k] * d[k] : 1;
                    sum += square * (by_rows ? a[i * K + k] * a[j * K + k] : a[k * N + i] * a[k * N + j]);
                }
                assert_true(fabs(sum - got[i * N + j]) < (narrow ? 1e-6 : 1e-14) * K * 25);
            }
        }
    }
    nmlp_pool_destroy(pool);
    nmlp_mem_free(a);
    nmlp_mem_free(d);
    nmlp_mem_free(got);
}

/* A product beside other columns: they stay. */
static void products_go_into_a_wider_matrix(void **state) {
    enum { M = 5, N = 3, K = 7, STRIDE = 8 };
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 10);
    double *a = random_matrix(&rng, M * K);
    double *b = random_matrix(&rng, K * N);
    double want[M * N], wide[2][M * STRIDE];
    nmlp_linalg_gemm(NULL, NMLP_PLAIN, NMLP_PLAIN, M, N, K, a, b, want);
    for (int i = 0; i < M * STRIDE; i++) wide[0][i] = wide[1][i] = 77;
    nmlp_linalg_gemm_into(NULL, NMLP_PLAIN, NMLP_PLAIN, M, N, K, a, b, wide[0] + 2, STRIDE);
    nmlp_assert_ok(nmlp_linalg_gemm_f32(NULL, NMLP_PLAIN, NMLP_PLAIN, M, N, K, a, b, wide[1] + 2, STRIDE, &err), &err);
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < STRIDE; j++) {
            bool inside = j >= 2 && j < 2 + N;
            double expected = inside ? want[i * N + j - 2] : 77;
            assert_true(fabs(wide[0][i * STRIDE + j] - expected) < 1e-12);
            assert_true(fabs(wide[1][i * STRIDE + j] - expected) < 1e-5);
        }
    }
    nmlp_mem_free(a);
    nmlp_mem_free(b);
}

static void gram_and_cross_equal_f64_sums(void **state) {
    enum { S = 700, M = 19, N = 300 };
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 2);
    float *x = nmlp_mem_new(S * N, sizeof *x, &err);
    float *y = nmlp_mem_new(S * M, sizeof *y, &err);
    double *gram = nmlp_mem_new(N * N, sizeof *gram, &err);
    double *cross = nmlp_mem_new(M * N, sizeof *cross, &err);
    for (int i = 0; i < S * N; i++) x[i] = (float)nmlp_rng_normal(&rng);
    for (int i = 0; i < S * M; i++) y[i] = (float)nmlp_rng_normal(&rng);
    nmlp_assert_ok(nmlp_linalg_gram_add(NULL, gram, x, S, N, &err), &err);
    nmlp_assert_ok(nmlp_linalg_cross_add(NULL, cross, y, x, S, M, N, &err), &err);
    for (int i = 0; i < N; i += 7) {
        for (int j = 0; j < N; j += 5) {
            double sum = 0;
            for (int t = 0; t < S; t++) sum += (double)x[t * N + i] * (double)x[t * N + j];
            /* 256 products a chunk in f32: error below 256 * 2^-24 of the summed sizes (about 1 each) */
            assert_true(fabs(sum - gram[i * N + j]) < S * 256 * 6e-8);
            assert_true(gram[i * N + j] == gram[j * N + i]);
        }
    }
    for (int i = 0; i < M; i++) {
        double sum = 0;
        for (int t = 0; t < S; t++) sum += (double)y[t * M + i] * (double)x[t * N + 11];
        assert_true(fabs(sum - cross[i * N + 11]) < S * 256 * 6e-8);
    }
    nmlp_mem_free(x);
    nmlp_mem_free(y);
    nmlp_mem_free(gram);
    nmlp_mem_free(cross);
}

static void eigenvectors_are_orthonormal_sorted_and_rebuild_the_matrix(void **state) {
    enum { N = 60 };
    nmlp_rng rng;
    nmlp_err err;
    double values[N];
    (void)state;
    nmlp_rng_seed(&rng, 3);
    double *r = random_matrix(&rng, N * N);
    double *a = random_matrix(&rng, N * N);
    nmlp_linalg_gemm(NULL, NMLP_TRANSPOSED, NMLP_PLAIN, N, N, N, r, r, a);
    double *q = nmlp_mem_new(N * N, sizeof *q, &err);
    memcpy(q, a, N * N * sizeof *q);
    nmlp_assert_ok(nmlp_linalg_eigen(q, N, values, &err), &err);
    for (int i = 0; i < N; i++) {
        assert_true(i == 0 || values[i] <= values[i - 1]);
        for (int j = 0; j < N; j++) {
            double dot = 0;
            double rebuilt = 0;
            for (int k = 0; k < N; k++) {
                dot += q[i * N + k] * q[j * N + k];
                rebuilt += values[k] * q[k * N + i] * q[k * N + j];
            }
            assert_true(fabs(dot - (i == j)) < 1e-12);
            assert_true(fabs(rebuilt - a[i * N + j]) < 1e-12 * N * values[0]);
        }
    }
    nmlp_mem_free(r);
    nmlp_mem_free(a);
    nmlp_mem_free(q);
}

static void eigen_of_nan_is_refused(void **state) {
    double a[4] = {1, 0, 0, NAN};
    double values[2];
    nmlp_err err;
    (void)state;
    nmlp_assert_fails(nmlp_linalg_eigen(a, 2, values, &err), &err, NMLP_E_NUMERIC, "NaN", "[1,1]", NULL);
}

static double root_error(const double *s, const double *a, int n) {
    double worst = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++) sum += s[i * n + k] * s[j * n + k];
            worst = fmax(worst, fabs(sum - a[i * n + j]));
        }
    }
    return worst;
}

static void root_squares_to_a_singular_and_to_an_indefinite_matrix(void **state) {
    double singular[9] = {4, 2, 0, 2, 1, 0, 0, 0, 0}; /* rank 1, a dead channel */
    double indefinite[4] = {1, 0, 0, -0.5};           /* only rounding can give this; clamps to diag(1, 0) */
    double want[4] = {1, 0, 0, 0};
    double s[9];
    bool triangular;
    nmlp_err err;
    (void)state;
    memcpy(s, singular, sizeof s);
    nmlp_assert_ok(nmlp_linalg_root(NULL, s, 3, &triangular, &err), &err);
    assert_true(triangular);
    assert_true(root_error(s, singular, 3) < 5e-6); /* the jitter: 1e-6 of a diagonal of at most 4 */
    memcpy(s, indefinite, sizeof indefinite);
    nmlp_assert_ok(nmlp_linalg_root(NULL, s, 2, &triangular, &err), &err);
    assert_false(triangular);
    assert_true(root_error(s, want, 2) < 1e-14);
}

/* Three blocks, the last one narrow; A = M M^T + 1 from the triple loop. */
static void cholesky_squares_to_the_matrix_on_any_number_of_threads(void **state) {
    enum { N = 530 };
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 11);
    double *m = random_matrix(&rng, N * N), *a = random_matrix(&rng, N * N), *l[3];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            a[i * N + j] = i == j;
            for (int k = 0; k < N; k++) a[i * N + j] += m[i * N + k] * m[j * N + k];
        }
    for (int threads = 1; threads <= 3; threads++) {
        nmlp_pool *pool;
        nmlp_assert_ok(nmlp_pool_create(&pool, threads, &err), &err);
        l[threads - 1] = random_matrix(&rng, N * N);
        memcpy(l[threads - 1], a, (size_t)N * N * sizeof *a);
        assert_true(nmlp_linalg_cholesky(pool, l[threads - 1], N));
        nmlp_pool_destroy(pool);
    }
    assert_memory_equal(l[0], l[1], (size_t)N * N * sizeof *a);
    assert_memory_equal(l[0], l[2], (size_t)N * N * sizeof *a);
    for (int i = 0; i < N; i++)
        for (int j = i + 1; j < N; j++) assert_true(l[0][i * N + j] == 0);
    assert_true(root_error(l[0], a, N) < 1e-10 * N);
    a[520 * N + 520] = -1; /* in the last block */
    assert_false(nmlp_linalg_cholesky(NULL, a, N));
    for (int i = 0; i < 3; i++) nmlp_mem_free(l[i]);
    nmlp_mem_free(m);
    nmlp_mem_free(a);
}

static void triangular_solves_undo_the_product(void **state) {
    enum { M = 140, N = 20 };
    nmlp_rng rng;
    (void)state;
    nmlp_rng_seed(&rng, 4);
    double *l = random_matrix(&rng, N * N);
    double *b = random_matrix(&rng, M * N);
    double *c = random_matrix(&rng, M * N);
    for (int i = 0; i < N; i++)
        for (int j = i; j < N; j++) l[i * N + j] = i == j ? 3 : 0;
    nmlp_linalg_gemm(NULL, NMLP_PLAIN, NMLP_PLAIN, M, N, N, b, l, c);
    nmlp_linalg_solve_right(NULL, l, c, M, N);
    for (int i = 0; i < M * N; i++) assert_true(fabs(c[i] - b[i]) < 1e-9);
    nmlp_linalg_gemm(NULL, NMLP_PLAIN, NMLP_TRANSPOSED, M, N, N, b, l, c);
    nmlp_linalg_solve_right_transposed(NULL, l, c, M, N);
    for (int i = 0; i < M * N; i++) assert_true(fabs(c[i] - b[i]) < 1e-9);
    nmlp_mem_free(l);
    nmlp_mem_free(b);
    nmlp_mem_free(c);
}

static void thread_count_of_blas_is_given_back(void **state) {
    (void)state;
    openblas_set_num_threads(2);
    int had = openblas_get_num_threads();
    int n_threads = nmlp_linalg_begin();
    assert_int_equal(openblas_get_num_threads(), 1);
    nmlp_linalg_end(n_threads);
    assert_int_equal(openblas_get_num_threads(), had);
}

static void results_have_equal_bits_with_one_and_three_threads(void **state) {
    enum { S = 600, N = 520 };
    nmlp_rng rng;
    nmlp_err err;
    nmlp_pool *pool;
    double values[2][N];
    (void)state;
    nmlp_rng_seed(&rng, 5);
    (void)nmlp_linalg_begin();
    nmlp_assert_ok(nmlp_pool_create(&pool, 3, &err), &err);
    float *x = nmlp_mem_new(S * N, sizeof *x, &err);
    double *gram[2], *product[2];
    for (int i = 0; i < S * N; i++) x[i] = (float)nmlp_rng_normal(&rng);
    for (int run = 0; run < 2; run++) {
        gram[run] = nmlp_mem_new(N * N, sizeof(double), &err);
        product[run] = nmlp_mem_new(N * N, sizeof(double), &err);
        nmlp_assert_ok(nmlp_linalg_gram_add(run ? pool : NULL, gram[run], x, S, N, &err), &err);
        nmlp_linalg_gemm(run ? pool : NULL, NMLP_PLAIN, NMLP_PLAIN, N, N, N, gram[run], gram[run], product[run]);
        nmlp_eigen_task task = {.a = gram[run], .values = values[run], .n = N};
        nmlp_assert_ok(nmlp_linalg_eigen_all(run ? pool : NULL, &task, 1, &err), &err);
    }
    assert_memory_equal(gram[0], gram[1], N * N * sizeof(double));
    assert_memory_equal(product[0], product[1], N * N * sizeof(double));
    assert_memory_equal(values[0], values[1], sizeof values[0]);
    for (int run = 0; run < 2; run++) {
        nmlp_mem_free(gram[run]);
        nmlp_mem_free(product[run]);
    }
    nmlp_mem_free(x);
    nmlp_pool_destroy(pool);
}

static void old_blas_cores_are_named_on_new_cpus_only(void **state) {
    (void)state;
    assert_string_equal(nmlp_linalg_better_core_than("Prescott", true, true), "SkylakeX");
    assert_string_equal(nmlp_linalg_better_core_than("Prescott", true, false), "Haswell");
    assert_null(nmlp_linalg_better_core_than("Prescott", false, false));
    assert_null(nmlp_linalg_better_core_than("SkylakeX", true, true));
    assert_null(nmlp_linalg_better_core_than("Zen", true, false));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_equals_the_triple_loop_in_every_orientation),
        cmocka_unit_test(weighted_squares_equal_plain_sums),
        cmocka_unit_test(products_go_into_a_wider_matrix),
        cmocka_unit_test(gram_and_cross_equal_f64_sums),
        cmocka_unit_test(eigenvectors_are_orthonormal_sorted_and_rebuild_the_matrix),
        cmocka_unit_test(eigen_of_nan_is_refused),
        cmocka_unit_test(root_squares_to_a_singular_and_to_an_indefinite_matrix),
        cmocka_unit_test(cholesky_squares_to_the_matrix_on_any_number_of_threads),
        cmocka_unit_test(triangular_solves_undo_the_product),
        cmocka_unit_test(thread_count_of_blas_is_given_back),
        cmocka_unit_test(results_have_equal_bits_with_one_and_three_threads),
        cmocka_unit_test(old_blas_cores_are_named_on_new_cpus_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
