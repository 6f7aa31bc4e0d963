/* Linear: every set against float64, over tails, types, threads and guard pages. */
#include <math.h>

#include "base/mem.h"
#include "lib/guard.h"
#include "lib/testing.h"
#include "lib/truth.h"

struct shape {
    int64_t s;
    int64_t n;
    int64_t k;
};

static const struct shape shapes[] = {
    {1, 1, 1},     {1, 16, 32},   {2, 17, 33},    {3, 31, 5},   {5, 33, 100},  {4, 96, 300},
    {6, 40, 64},   {7, 47, 77},   {8, 63, 129},   {12, 64, 48}, {13, 5, 2},    {16, 100, 65},
    {17, 48, 191}, {24, 65, 31},  {25, 30, 40},   {31, 97, 66}, {33, 33, 33},  {100, 70, 90},
    {129, 35, 37}, {400, 34, 35}, {37, 130, 900}, {3, 70, 512}, {70, 50, 512}, {5, 70, 256},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static nmlp_linear *create(const nmlp_kernels *set, const nmlp_view *w, const nmlp_view *bias, nmlp_pool *pool) {
    nmlp_linear *linear;
    nmlp_err err;
    nmlp_assert_ok(nmlp_linear_create(&linear, set, w, bias, pool, &err), &err);
    return linear;
}

static void run(const nmlp_linear *linear, float *y, const float *x, int64_t s, nmlp_pool *pool) {
    void *workspace = nmlp_mem_new(1, nmlp_linear_workspace_bytes(linear, s, nmlp_pool_threads(pool)), NULL);
    nmlp_linear_run(linear, y, x, s, workspace, pool);
    nmlp_mem_free(workspace);
}

static void check_shape(const nmlp_kernels *set, struct shape shape, nmlp_dtype dtype, nmlp_pool *pool) {
    char what[128];
    nmlp_view w = nmlp_test_weight(shape.n, shape.k, dtype, 1);
    float *x = nmlp_test_floats(shape.s * shape.k, 2);
    float *bias = nmlp_test_floats(shape.n, 3);
    float *y = nmlp_mem_new((size_t)(shape.s * shape.n), sizeof *y, NULL);
    nmlp_view bias_view = nmlp_view_2d(bias, NMLP_DTYPE_F32, 1, shape.n);
    nmlp_linear *linear = create(set, &w, &bias_view, pool);
    run(linear, y, x, shape.s, pool);
    nmlp_truth exact = nmlp_truth_of(x, shape.s, shape.k);
    nmlp_truth truth = nmlp_truth_matmul(&exact, &w, bias, nmlp_kernels_rounds_to_bf16(set));
    snprintf(what, sizeof what, "%s %s S=%lld N=%lld K=%lld", nmlp_kernels_name(set), nmlp_dtype_name(dtype),
             (long long)shape.s, (long long)shape.n, (long long)shape.k);
    nmlp_assert_within(y, &truth, what);
    nmlp_truth_free(&exact);
    nmlp_truth_free(&truth);
    nmlp_linear_destroy(linear);
    nmlp_mem_free(x);
    nmlp_mem_free(bias);
    nmlp_mem_free(y);
    nmlp_test_weight_free(&w);
}

static void all_shapes_and_types_match_float64(void **state) {
    (void)state;
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        for (int dtype = NMLP_DTYPE_F32; dtype <= NMLP_DTYPE_F16; dtype++)
            for (int j = 0; j < N_SHAPES; j++) check_shape(set, shapes[j], (nmlp_dtype)dtype, pool);
    }
    nmlp_pool_destroy(pool);
}

/* A row alone, in chunks of a batch or among all others. */
static void bits_do_not_depend_on_other_rows(void **state) {
    static const int64_t chunks[] = {1, 5, 7, 13, 61, 100};
    enum { S = 150, N = 150, K = 1300 };
    (void)state;
    float *x = nmlp_test_floats(S * K, 5);
    float *all = nmlp_mem_new(S * N, sizeof *all, NULL);
    float *some = nmlp_mem_new(S * N, sizeof *some, NULL);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set || nmlp_kernels_rounds_to_bf16(set)) continue;
        for (int dtype = NMLP_DTYPE_F32; dtype <= NMLP_DTYPE_F16; dtype++) {
            nmlp_view w = nmlp_test_weight(N, K, (nmlp_dtype)dtype, 4);
            nmlp_linear *linear = create(set, &w, NULL, NULL);
            run(linear, all, x, S, NULL);
            for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
                for (int64_t at = 0; at < S; at += chunks[c]) {
                    int64_t n = S - at < chunks[c] ? S - at : chunks[c];
                    run(linear, some + at * N, x + at * K, n, NULL);
                }
                assert_memory_equal(some, all, S * N * sizeof *all);
            }
            nmlp_linear_destroy(linear);
            nmlp_test_weight_free(&w);
        }
    }
    nmlp_mem_free(x);
    nmlp_mem_free(all);
    nmlp_mem_free(some);
}

static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 3, 17, 50, 400, 1100};
    static const int threads[] = {2, 3, 4, 5};
    enum { N = 150, K = 210 };
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        nmlp_view w = nmlp_test_weight(N, K, NMLP_DTYPE_BF16, 4);
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            float *x = nmlp_test_floats(rows[r] * K, 5);
            size_t n = (size_t)(rows[r] * N);
            float *one = nmlp_mem_new(n, sizeof *one, NULL);
            float *many = nmlp_mem_new(n, sizeof *many, NULL);
            nmlp_linear *linear = create(set, &w, NULL, NULL);
            run(linear, one, x, rows[r], NULL);
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
                nmlp_pool *pool = nmlp_test_pool(threads[t]);
                run(linear, many, x, rows[r], pool);
                assert_memory_equal(one, many, n * sizeof *one);
                nmlp_pool_destroy(pool);
            }
            nmlp_linear_destroy(linear);
            nmlp_mem_free(x);
            nmlp_mem_free(one);
            nmlp_mem_free(many);
        }
        nmlp_test_weight_free(&w);
    }
}

typedef void *place(nmlp_guarded *guarded, size_t bytes);

/* Weight, x, y and workspace all touch an unreadable page. */
static void run_guarded(const nmlp_kernels *set, struct shape shape, place *put, nmlp_pool *pool) {
    nmlp_guarded g[4];
    size_t x_bytes = (size_t)(shape.s * shape.k) * sizeof(float);
    size_t y_bytes = (size_t)(shape.s * shape.n) * sizeof(float);
    nmlp_view w = nmlp_test_weight(shape.n, shape.k, NMLP_DTYPE_BF16, 6);
    float *x = nmlp_test_floats(shape.s * shape.k, 7);
    float *x_guarded = put(&g[0], x_bytes);
    float *y = put(&g[1], y_bytes);
    void *w_guarded = put(&g[2], nmlp_view_bytes(&w));
    memcpy(x_guarded, x, x_bytes);
    memcpy(w_guarded, w.data, nmlp_view_bytes(&w));
    nmlp_view view = nmlp_view_2d(w_guarded, NMLP_DTYPE_BF16, shape.n, shape.k);
    nmlp_linear *linear = create(set, &view, NULL, pool);
    void *workspace = put(&g[3], nmlp_linear_workspace_bytes(linear, shape.s, nmlp_pool_threads(pool)));
    nmlp_linear_run(linear, y, x_guarded, shape.s, workspace, pool);
    nmlp_truth exact = nmlp_truth_of(x, shape.s, shape.k);
    nmlp_truth truth = nmlp_truth_matmul(&exact, &w, NULL, nmlp_kernels_rounds_to_bf16(set));
    nmlp_assert_within(y, &truth, nmlp_kernels_name(set));
    nmlp_truth_free(&exact);
    nmlp_truth_free(&truth);
    nmlp_linear_destroy(linear);
    for (int i = 0; i < 4; i++) nmlp_guard_free(&g[i]);
    nmlp_mem_free(x);
    nmlp_test_weight_free(&w);
}

static void nothing_past_the_buffers_is_touched(void **state) {
    (void)state;
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        for (int j = 0; j < N_SHAPES; j++) {
            run_guarded(set, shapes[j], nmlp_guard_end, pool);
            run_guarded(set, shapes[j], nmlp_guard_begin, pool);
        }
    }
    nmlp_pool_destroy(pool);
}

static void a_workspace_does_for_fewer_rows(void **state) {
    (void)state;
    nmlp_view w = nmlp_test_weight(70, 1500, NMLP_DTYPE_BF16, 8);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        nmlp_linear *linear = create(set, &w, NULL, NULL);
        size_t before = 0;
        for (int64_t s = 1; s < 1500; s++) {
            size_t bytes = nmlp_linear_workspace_bytes(linear, s, 3);
            assert_true(bytes >= before);
            before = bytes;
        }
        nmlp_linear_destroy(linear);
    }
    nmlp_test_weight_free(&w);
}

/* A NaN or infinity in one row shows in that row as float64 says, and in no other. */
static void special_values_stay_in_their_row(void **state) {
    (void)state;
    enum { S = 30, N = 37, K = 45 };
    static const float specials[] = {NAN, INFINITY, -INFINITY};
    nmlp_view w = nmlp_test_weight(N, K, NMLP_DTYPE_BF16, 9);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        for (int special = 0; special < 3; special++) {
            for (int64_t s = 2; s <= S; s += S - 2) {
                float *x = nmlp_test_floats(s * K, 10);
                float y[S * N];
                x[1 * K + 40] = specials[special];
                nmlp_linear *linear = create(set, &w, NULL, NULL);
                run(linear, y, x, s, NULL);
                for (int64_t n = 0; n < N; n++) {
                    float weight = nmlp_bf16_to_f32(((const uint16_t *)w.data)[n * K + 40]);
                    float want = specials[special] * weight;
                    assert_true(isnan(want) ? isnan(y[N + n]) : y[N + n] == want);
                    assert_true(isfinite(y[n]));
                    if (s > 2) assert_true(isfinite(y[2 * N + n]));
                }
                nmlp_linear_destroy(linear);
                nmlp_mem_free(x);
            }
        }
    }
    nmlp_test_weight_free(&w);
}

static void wrong_shapes_are_refused(void **state) {
    (void)state;
    nmlp_err err;
    nmlp_linear *linear;
    float data[12] = {0};
    const nmlp_kernels *set = nmlp_test_set(0);
    nmlp_view cube = {.data = data, .dtype = NMLP_DTYPE_F32, .n_dims = 3, .shape = {1, 3, 4}};
    nmlp_assert_fails(nmlp_linear_create(&linear, set, &cube, NULL, NULL, &err), &err, NMLP_E_SHAPE, "[1,3,4]", NULL);
    nmlp_view w = nmlp_view_2d(data, NMLP_DTYPE_F32, 3, 4);
    nmlp_view bias = nmlp_view_2d(data, NMLP_DTYPE_F32, 1, 4);
    nmlp_assert_fails(nmlp_linear_create(&linear, set, &w, &bias, NULL, &err), &err, NMLP_E_SHAPE, "4", "3", NULL);
    assert_null(linear);
}

static void sets_are_found_by_name(void **state) {
    (void)state;
    nmlp_err err;
    const nmlp_kernels *set;
    nmlp_cpu none = {0};
    nmlp_cpu all = {.avx2_fma = true, .avx512 = true, .avx512_bf16 = true, .amx_bf16 = true};
    nmlp_cpu without_tiles = {
        .avx2_fma = true, .avx512 = true, .avx512_bf16 = true, .avx512_vnni = true, .avx512_vbmi = true};
    nmlp_assert_ok(nmlp_kernels_select(&set, &none, "auto", &err), &err);
    assert_string_equal(nmlp_kernels_name(set), "ref");
    nmlp_assert_fails(nmlp_kernels_select(&set, &none, "avx512", &err), &err, NMLP_E_UNSUPPORTED, "avx512", NULL);
    nmlp_assert_fails(nmlp_kernels_select(&set, &none, "neon", &err), &err, NMLP_E_ARG, "neon", "ref", NULL);
#if defined(__x86_64__)
    nmlp_assert_ok(nmlp_kernels_select(&set, &all, NULL, &err), &err);
    assert_string_equal(nmlp_kernels_name(set), "avx512");
    nmlp_assert_ok(nmlp_kernels_select_bf16(&set, &all, NULL, &err), &err);
    assert_string_equal(nmlp_kernels_name(set), "amx");
    nmlp_assert_ok(nmlp_kernels_select_bf16(&set, &without_tiles, NULL, &err), &err);
    assert_string_equal(nmlp_kernels_name(set), "avx512");
    without_tiles.bf16_dot_is_fast = true;
    nmlp_assert_ok(nmlp_kernels_select_bf16(&set, &without_tiles, NULL, &err), &err);
    assert_string_equal(nmlp_kernels_name(set), "avx512bf16");
    nmlp_assert_ok(nmlp_kernels_select(&set, &without_tiles, NULL, &err), &err);
    assert_string_equal(nmlp_kernels_name(set), "avx512");
#else
    (void)all, (void)without_tiles;
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shapes_and_types_match_float64), cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(bits_do_not_depend_on_other_rows),   cmocka_unit_test(nothing_past_the_buffers_is_touched),
        cmocka_unit_test(a_workspace_does_for_fewer_rows),    cmocka_unit_test(special_values_stay_in_their_row),
        cmocka_unit_test(wrong_shapes_are_refused),           cmocka_unit_test(sets_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
