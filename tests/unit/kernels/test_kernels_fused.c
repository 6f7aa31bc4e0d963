/* What is fused into a matmul equals, to the bit, the same steps one after the other; and packing notices NaN and Inf.
 */
#include <math.h>

#include "base/mem.h"
#include "lib/guard.h"
#include "lib/testing.h"
#include "lib/truth.h"

static const int64_t row_counts[] = {1, 5, 9, 17, 100, 400};
static const int thread_counts[] = {1, 2, 3};
enum { N_ROW_COUNTS = sizeof row_counts / sizeof row_counts[0], ROWS_MAX = 400 };
enum { N_THREAD_COUNTS = sizeof thread_counts / sizeof thread_counts[0], N_LINEARS = 3, K = 90, INNER = 130 };
static const float EPS = 1e-5f;

static nmlp_linear *create_linear(const nmlp_kernels *set, const nmlp_view *w, const nmlp_view *bias, nmlp_pool *pool) {
    nmlp_linear *linear;
    nmlp_err err;
    nmlp_assert_ok(nmlp_linear_create(&linear, set, w, bias, pool, &err), &err);
    return linear;
}

static float *copy_of(const float *x, int64_t n) {
    float *copy = nmlp_mem_new((size_t)n, sizeof *copy, NULL);
    memcpy(copy, x, (size_t)n * sizeof *copy);
    return copy;
}

struct linears {
    nmlp_linear *linear[N_LINEARS];
    int64_t n[N_LINEARS];
    const float *weight; /* of the norm */
};

/* Norm, matmuls, sums, one by one, against all at once. */
static void check_linears(const struct linears *l, const float *x, const float *start, int64_t s, nmlp_pool *pool) {
    float *normed = nmlp_mem_new((size_t)(s * K), sizeof *normed, NULL);
    float *got[N_LINEARS];
    size_t bytes = 0;
    for (int i = 0; i < N_LINEARS; i++) {
        size_t need = nmlp_linear_workspace_bytes(l->linear[i], s, nmlp_pool_threads(pool));
        if (need > bytes) bytes = need;
        got[i] = copy_of(start, s * l->n[i]);
    }
    nmlp_guarded guarded;
    void *workspace = nmlp_guard_end(&guarded, bytes);
    nmlp_fused fused = {.norm = l->weight, .norm_eps = EPS, .add = true};
    nmlp_linear_run_all((const nmlp_linear *const *)l->linear, got, N_LINEARS, x, s, &fused, workspace, pool);
    nmlp_rmsnorm(normed, x, l->weight, EPS, s, K, pool);
    for (int i = 0; i < N_LINEARS; i++) {
        float *want = copy_of(start, s * l->n[i]);
        float *product = nmlp_mem_new((size_t)(s * l->n[i]), sizeof *product, NULL);
        nmlp_linear_run(l->linear[i], product, normed, s, workspace, pool);
        nmlp_add(want, product, s * l->n[i], pool);
        assert_memory_equal(want, got[i], (size_t)(s * l->n[i]) * sizeof *want);
        nmlp_mem_free(want);
        nmlp_mem_free(product);
        nmlp_mem_free(got[i]);
    }
    nmlp_guard_free(&guarded);
    nmlp_mem_free(normed);
}

static void linears_of_one_input_equal_single_steps(void **state) {
    (void)state;
    static const int64_t n[N_LINEARS] = {70, 33, 40};
    float *x = nmlp_test_floats(ROWS_MAX * K, 1);
    float *weight = nmlp_test_floats(K, 2);
    float *start = nmlp_test_floats(ROWS_MAX * n[0], 3);
    float *bias = nmlp_test_floats(n[0], 4);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        struct linears l = {.weight = weight};
        for (int j = 0; j < N_LINEARS; j++) {
            nmlp_view w = nmlp_test_weight(n[j], K, NMLP_DTYPE_BF16, 5 + (uint64_t)j);
            nmlp_view b = nmlp_view_2d(j == 1 ? bias : NULL, NMLP_DTYPE_F32, 1, n[j]);
            l.n[j] = n[j];
            l.linear[j] = create_linear(set, &w, &b, NULL);
            nmlp_test_weight_free(&w);
        }
        for (int t = 0; t < N_THREAD_COUNTS; t++) {
            nmlp_pool *pool = nmlp_test_pool(thread_counts[t]);
            for (int r = 0; r < N_ROW_COUNTS; r++) check_linears(&l, x, start, row_counts[r], pool);
            nmlp_pool_destroy(pool);
        }
        for (int j = 0; j < N_LINEARS; j++) nmlp_linear_destroy(l.linear[j]);
    }
    nmlp_mem_free(x);
    nmlp_mem_free(weight);
    nmlp_mem_free(start);
    nmlp_mem_free(bias);
}

/* The residual stream is input and output at once. */
static void check_mlp_in_place(const nmlp_mlp *mlp, const float *x, const float *weight, int64_t s, nmlp_pool *pool) {
    size_t n = (size_t)(s * K);
    nmlp_guarded guarded;
    void *workspace = nmlp_guard_end(&guarded, nmlp_mlp_workspace_bytes(mlp, s, nmlp_pool_threads(pool)));
    float *got = copy_of(x, s * K);
    float *want = copy_of(x, s * K);
    float *normed = nmlp_mem_new(n, sizeof *normed, NULL);
    float *product = nmlp_mem_new(n, sizeof *product, NULL);
    nmlp_fused fused = {.norm = weight, .norm_eps = EPS, .add = true};
    nmlp_mlp_run_fused(mlp, got, got, s, &fused, workspace, pool);
    nmlp_rmsnorm(normed, x, weight, EPS, s, K, pool);
    nmlp_mlp_run(mlp, product, normed, s, workspace, pool);
    nmlp_add(want, product, s * K, pool);
    assert_memory_equal(want, got, n * sizeof *want);
    nmlp_mem_free(got);
    nmlp_mem_free(want);
    nmlp_mem_free(normed);
    nmlp_mem_free(product);
    nmlp_guard_free(&guarded);
}

static void a_fused_mlp_equals_single_steps(void **state) {
    (void)state;
    enum { RANK = 40 };
    nmlp_err err;
    float *x = nmlp_test_floats(ROWS_MAX * K, 1);
    float *weight = nmlp_test_floats(K, 2);
    nmlp_mlp_desc desc = {.gate = {.u = nmlp_test_weight(INNER, RANK, NMLP_DTYPE_BF16, 3),
                                   .v = nmlp_test_weight(RANK, K, NMLP_DTYPE_BF16, 4)},
                          .up = {.w = nmlp_test_weight(INNER, K, NMLP_DTYPE_BF16, 5)},
                          .down = {.u = nmlp_test_weight(K, RANK, NMLP_DTYPE_BF16, 6),
                                   .v = nmlp_test_weight(RANK, INNER, NMLP_DTYPE_BF16, 7)}};
    nmlp_view *views[] = {&desc.gate.u, &desc.gate.v, &desc.up.w, &desc.down.u, &desc.down.v};
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        nmlp_mlp *mlp;
        if (!set) continue;
        nmlp_assert_ok(nmlp_mlp_create(&mlp, set, &desc, NULL, &err), &err);
        assert_true(nmlp_mlp_is_finite(mlp));
        for (int t = 0; t < N_THREAD_COUNTS; t++) {
            nmlp_pool *pool = nmlp_test_pool(thread_counts[t]);
            for (int r = 0; r < N_ROW_COUNTS; r++) check_mlp_in_place(mlp, x, weight, row_counts[r], pool);
            nmlp_pool_destroy(pool);
        }
        nmlp_mlp_destroy(mlp);
    }
    for (int i = 0; i < 5; i++) nmlp_test_weight_free(views[i]);
    nmlp_mem_free(x);
    nmlp_mem_free(weight);
}

/* First, last and middle element, in every type. */
static void packing_notices_what_is_not_finite(void **state) {
    (void)state;
    enum { N = 35, LAST = N * K - 1 };
    static const int64_t places[] = {0, LAST / 2, LAST};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        for (int j = 0; j < 3 * (NMLP_DTYPE_F16 + 1); j++) {
            nmlp_dtype dtype = (nmlp_dtype)(j / 3);
            nmlp_view w = nmlp_test_weight(N, K, dtype, 8);
            char *element = (char *)(uintptr_t)w.data + (size_t)places[j % 3] * nmlp_dtype_bytes(dtype);
            nmlp_linear *sound = create_linear(set, &w, NULL, pool);
            nmlp_from_f32(element, dtype, &values[j % 3], 1);
            nmlp_linear *broken = create_linear(set, &w, NULL, pool);
            assert_true(nmlp_linear_is_finite(sound));
            assert_false(nmlp_linear_is_finite(broken));
            nmlp_linear_destroy(sound);
            nmlp_linear_destroy(broken);
            nmlp_test_weight_free(&w);
        }
    }
    nmlp_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linears_of_one_input_equal_single_steps),
        cmocka_unit_test(a_fused_mlp_equals_single_steps),
        cmocka_unit_test(packing_notices_what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
