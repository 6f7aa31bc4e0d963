/* Gated MLP: dense, low rank, shared basis and mixtures against float64; fused against observed. */
#include <math.h>

#include "base/mem.h"
#include "lib/guard.h"
#include "lib/testing.h"
#include "lib/truth.h"

/* Ranks of gate, up and down; 0 is dense, and a negative up rank shares the gate's basis. */
struct shape {
    int64_t h;
    int64_t i;
    int64_t gate;
    int64_t up;
    int64_t down;
};

static const struct shape shapes[] = {
    {1, 1, 0, 0, 0},    {33, 50, 0, 0, 0},  {40, 100, 17, 17, 33}, {65, 31, 5, 9, 3},  {31, 97, 20, -1, 35},
    {48, 64, 0, 16, 7}, {48, 64, 16, 0, 0}, {35, 900, 33, 31, 47}, {70, 777, 0, 0, 0}, {64, 128, 32, 32, 32},
};
static const int64_t row_counts[] = {1, 2, 3, 5, 16, 17, 24, 31, 33, 100, 230, 400};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0], N_ROW_COUNTS = sizeof row_counts / sizeof row_counts[0] };

static nmlp_factors make_factors(int64_t n, int64_t k, int64_t rank, nmlp_dtype dtype, uint64_t seed) {
    nmlp_factors f = {0};
    if (rank == 0) {
        f.w = nmlp_test_weight(n, k, dtype, seed);
    } else {
        f.u = nmlp_test_weight(n, rank, dtype, seed);
        f.v = nmlp_test_weight(rank, k, dtype, seed + 1);
    }
    return f;
}

static nmlp_mlp_desc make_desc(struct shape s, nmlp_dtype dtype) {
    nmlp_mlp_desc desc = {.gate = make_factors(s.i, s.h, s.gate, dtype, 10),
                          .down = make_factors(s.h, s.i, s.down, dtype, 30)};
    if (s.up < 0) {
        desc.up.u = nmlp_test_weight(s.i, s.gate, dtype, 20);
        desc.up.v = desc.gate.v;
    } else {
        desc.up = make_factors(s.i, s.h, s.up, dtype, 20);
    }
    return desc;
}

static void free_desc(nmlp_mlp_desc *desc) {
    if (desc->up.v.data == desc->gate.v.data) desc->up.v = (nmlp_view){0};
    nmlp_factors *all[] = {&desc->gate, &desc->up, &desc->down};
    for (int i = 0; i < 3; i++) {
        nmlp_test_weight_free(&all[i]->w);
        nmlp_test_weight_free(&all[i]->u);
        nmlp_test_weight_free(&all[i]->v);
    }
}

static nmlp_mlp *create(const nmlp_kernels *set, const nmlp_mlp_desc *desc, nmlp_pool *pool) {
    nmlp_mlp *mlp;
    nmlp_err err;
    nmlp_assert_ok(nmlp_mlp_create(&mlp, set, desc, pool, &err), &err);
    return mlp;
}

static void run(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, nmlp_pool *pool) {
    nmlp_guarded guarded;
    void *workspace = nmlp_guard_end(&guarded, nmlp_mlp_workspace_bytes(mlp, s, nmlp_pool_threads(pool)));
    nmlp_mlp_run(mlp, y, x, s, workspace, pool);
    nmlp_guard_free(&guarded);
}

/* One description, one set, all numbers of rows; float64 is computed once for the most rows. */
static void check_rows(const nmlp_kernels *set, const nmlp_mlp_desc *desc, const nmlp_truth *truth, const float *x,
                       const char *what, nmlp_pool *pool) {
    nmlp_mlp *mlp = create(set, desc, pool);
    int64_t h = truth->cols;
    for (int i = 0; i < N_ROW_COUNTS; i++) {
        int64_t s = row_counts[i];
        char name[160];
        nmlp_guarded guarded;
        float *y = nmlp_guard_end(&guarded, (size_t)(s * h) * sizeof *y);
        nmlp_truth part = *truth;
        part.rows = s;
        run(mlp, y, x, s, pool);
        snprintf(name, sizeof name, "%s S=%lld", what, (long long)s);
        nmlp_assert_within(y, &part, name);
        nmlp_guard_free(&guarded);
    }
    nmlp_mlp_destroy(mlp);
}

static void check_shape(struct shape shape, nmlp_dtype dtype, nmlp_pool *pool) {
    int64_t s_max = row_counts[N_ROW_COUNTS - 1];
    nmlp_mlp_desc desc = make_desc(shape, dtype);
    float *x = nmlp_test_floats(s_max * shape.h, 40);
    nmlp_truth exact = nmlp_truth_of(x, s_max, shape.h);
    for (int rounds = 0; rounds < 2; rounds++) {
        nmlp_truth truth = nmlp_truth_mlp(&exact, &desc, rounds);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            char what[128];
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set || nmlp_kernels_rounds_to_bf16(set) != (rounds == 1)) continue;
            snprintf(what, sizeof what, "%s %s H=%lld I=%lld ranks %lld,%lld,%lld", nmlp_kernels_name(set),
                     nmlp_dtype_name(dtype), (long long)shape.h, (long long)shape.i, (long long)shape.gate,
                     (long long)shape.up, (long long)shape.down);
            check_rows(set, &desc, &truth, x, what, pool);
        }
        nmlp_truth_free(&truth);
    }
    nmlp_truth_free(&exact);
    nmlp_mem_free(x);
    free_desc(&desc);
}

static void all_shapes_match_float64(void **state) {
    (void)state;
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int i = 0; i < N_SHAPES; i++) check_shape(shapes[i], NMLP_DTYPE_BF16, pool);
    check_shape(shapes[2], NMLP_DTYPE_F32, pool);
    check_shape(shapes[2], NMLP_DTYPE_F16, pool);
    nmlp_pool_destroy(pool);
}

/* Many blocks of rows and many chunks of I, whatever the caches. */
static void long_inputs_match_short_ones(void **state) {
    (void)state;
    struct shape shape = {.h = 40, .i = 3000, .gate = 24, .up = 24, .down = 50};
    enum { S = 1200, HEAD = 40 };
    nmlp_pool *pool = nmlp_test_pool(2);
    nmlp_mlp_desc desc = make_desc(shape, NMLP_DTYPE_BF16);
    float *x = nmlp_test_floats(S * shape.h, 41);
    float *y = nmlp_mem_new((size_t)(S * shape.h), sizeof *y, NULL);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        nmlp_mlp *mlp = create(set, &desc, pool);
        run(mlp, y, x, S, pool);
        for (int64_t first = 0; first < S; first += S - HEAD) {
            nmlp_truth exact = nmlp_truth_of(x + first * shape.h, HEAD, shape.h);
            nmlp_truth truth = nmlp_truth_mlp(&exact, &desc, nmlp_kernels_rounds_to_bf16(set));
            nmlp_assert_within(y + first * shape.h, &truth, nmlp_kernels_name(set));
            nmlp_truth_free(&exact);
            nmlp_truth_free(&truth);
        }
        nmlp_mlp_destroy(mlp);
    }
    nmlp_mem_free(x);
    nmlp_mem_free(y);
    free_desc(&desc);
    nmlp_pool_destroy(pool);
}

/* I so long that even 16 rows go in chunks, whatever the caches; down's sums then pass from chunk to chunk. */
static void few_rows_of_a_long_inside_match_float64(void **state) {
    (void)state;
    struct shape shape = {.h = 33, .i = 70000, .gate = 3, .up = 3, .down = 0};
    enum { S = 9 };
    nmlp_pool *pool = nmlp_test_pool(2);
    nmlp_mlp_desc desc = make_desc(shape, NMLP_DTYPE_BF16);
    float *x = nmlp_test_floats(S * shape.h, 43);
    float *y = nmlp_mem_new((size_t)(S * shape.h), sizeof *y, NULL);
    nmlp_truth exact = nmlp_truth_of(x, S, shape.h);
    for (int rounds = 0; rounds < 2; rounds++) {
        nmlp_truth truth = nmlp_truth_mlp(&exact, &desc, rounds);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set || nmlp_kernels_rounds_to_bf16(set) != (rounds == 1)) continue;
            nmlp_mlp *mlp = create(set, &desc, pool);
            run(mlp, y, x, S, pool);
            nmlp_assert_within(y, &truth, nmlp_kernels_name(set));
            nmlp_mlp_destroy(mlp);
        }
        nmlp_truth_free(&truth);
    }
    nmlp_truth_free(&exact);
    nmlp_mem_free(x);
    nmlp_mem_free(y);
    free_desc(&desc);
    nmlp_pool_destroy(pool);
}

static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    static const int threads[] = {2, 3, 4, 5};
    static const int64_t rows[] = {1, 7, 30, 420, 1100};
    struct shape shape = {.h = 90, .i = 700, .gate = 41, .up = 77, .down = 50};
    nmlp_mlp_desc desc = make_desc(shape, NMLP_DTYPE_BF16);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        nmlp_mlp *mlp = create(set, &desc, NULL);
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            size_t n = (size_t)(rows[r] * shape.h);
            float *x = nmlp_test_floats((int64_t)n, 42);
            float *one = nmlp_mem_new(n, sizeof *one, NULL);
            float *many = nmlp_mem_new(n, sizeof *many, NULL);
            run(mlp, one, x, rows[r], NULL);
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
                nmlp_pool *pool = nmlp_test_pool(threads[t]);
                run(mlp, many, x, rows[r], pool);
                assert_memory_equal(one, many, n * sizeof *one);
                nmlp_pool_destroy(pool);
            }
            nmlp_mem_free(x);
            nmlp_mem_free(one);
            nmlp_mem_free(many);
        }
        nmlp_mlp_destroy(mlp);
    }
    free_desc(&desc);
}

/* With u = W and v = 1, the factors are the dense weight. */
static void full_rank_equals_dense(void **state) {
    (void)state;
    enum { S = 40, H = 48, I = 70 };
    nmlp_mlp_desc dense = make_desc((struct shape){.h = H, .i = I}, NMLP_DTYPE_BF16);
    nmlp_mlp_desc full = {0};
    float *one = nmlp_mem_new(I * I, sizeof *one, NULL);
    uint16_t *eye_h = nmlp_mem_new(H * H, sizeof *eye_h, NULL);
    uint16_t *eye_i = nmlp_mem_new(I * I, sizeof *eye_i, NULL);
    for (int j = 0; j < H; j++) eye_h[j * H + j] = nmlp_f32_to_bf16(1.0f);
    for (int j = 0; j < I; j++) eye_i[j * I + j] = nmlp_f32_to_bf16(1.0f);
    full.gate = (nmlp_factors){.u = dense.gate.w, .v = nmlp_view_2d(eye_h, NMLP_DTYPE_BF16, H, H)};
    full.up = (nmlp_factors){.u = dense.up.w, .v = full.gate.v};
    full.down = (nmlp_factors){.u = dense.down.w, .v = nmlp_view_2d(eye_i, NMLP_DTYPE_BF16, I, I)};
    float *x = nmlp_test_floats(S * H, 43);
    float *y = nmlp_mem_new(S * H, sizeof *y, NULL);
    nmlp_truth exact = nmlp_truth_of(x, S, H);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        nmlp_truth truth = nmlp_truth_mlp(&exact, &dense, nmlp_kernels_rounds_to_bf16(set));
        nmlp_mlp *mlp = create(set, &full, NULL);
        run(mlp, y, x, S, NULL);
        nmlp_assert_within(y, &truth, nmlp_kernels_name(set));
        nmlp_truth_free(&truth);
        nmlp_mlp_destroy(mlp);
    }
    nmlp_truth_free(&exact);
    nmlp_mem_free(one);
    nmlp_mem_free(eye_h);
    nmlp_mem_free(eye_i);
    nmlp_mem_free(x);
    nmlp_mem_free(y);
    free_desc(&dense);
}

/* More ranks of zeros, and more tokens behind, change no bit of the first tokens. */
static void padding_changes_nothing(void **state) {
    (void)state;
    enum { H = 50, I = 60, R = 20, R_PADDED = 41, S = 30, S_PADDED = 47 };
    struct shape shape = {.h = H, .i = I, .gate = R, .up = R, .down = R};
    nmlp_mlp_desc desc = make_desc(shape, NMLP_DTYPE_BF16);
    nmlp_mlp_desc padded = desc;
    uint16_t *u = nmlp_mem_new(I * R_PADDED, sizeof *u, NULL);
    uint16_t *v = nmlp_mem_new(R_PADDED * H, sizeof *v, NULL);
    for (int n = 0; n < I; n++) memcpy(u + n * R_PADDED, (const uint16_t *)desc.gate.u.data + n * R, R * sizeof *u);
    memcpy(v, desc.gate.v.data, R * H * sizeof *v);
    padded.gate.u = nmlp_view_2d(u, NMLP_DTYPE_BF16, I, R_PADDED);
    padded.gate.v = nmlp_view_2d(v, NMLP_DTYPE_BF16, R_PADDED, H);
    float *x = nmlp_test_floats(S_PADDED * H, 44);
    float y[S * H];
    float y_padded[S_PADDED * H];
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        nmlp_mlp *plain = create(set, &desc, NULL);
        nmlp_mlp *wide = create(set, &padded, NULL);
        run(plain, y, x, S, NULL);
        run(wide, y_padded, x, S_PADDED, NULL);
        assert_memory_equal(y, y_padded, sizeof y);
        nmlp_mlp_destroy(plain);
        nmlp_mlp_destroy(wide);
    }
    nmlp_mem_free(u);
    nmlp_mem_free(v);
    nmlp_mem_free(x);
    free_desc(&desc);
}

/* In f32 a token's result is the same bit for bit, alone or with others. */
static void bits_do_not_depend_on_other_rows(void **state) {
    (void)state;
    struct shape shape = {.h = 70, .i = 1000, .gate = 33, .up = 33, .down = 40};
    enum { S = 500, H = 70 };
    nmlp_mlp_desc desc = make_desc(shape, NMLP_DTYPE_BF16);
    float *x = nmlp_test_floats(S * H, 47);
    float *all = nmlp_mem_new(S * H, sizeof *all, NULL);
    float *few = nmlp_mem_new(S * H, sizeof *few, NULL);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set || nmlp_kernels_rounds_to_bf16(set)) continue;
        nmlp_mlp *mlp = create(set, &desc, NULL);
        run(mlp, all, x, S, NULL);
        for (int r = 0; r < N_ROW_COUNTS; r++) {
            run(mlp, few, x, row_counts[r], NULL);
            assert_memory_equal(few, all, (size_t)(row_counts[r] * H) * sizeof *few);
        }
        nmlp_mlp_destroy(mlp);
    }
    nmlp_mem_free(x);
    nmlp_mem_free(all);
    nmlp_mem_free(few);
    free_desc(&desc);
}

static void check_observed(nmlp_activation activation) {
    enum { S = 37, H = 45, I = 83 };
    nmlp_pool *pool = nmlp_test_pool(2);
    nmlp_mlp_desc desc = make_desc((struct shape){.h = H, .i = I, .gate = 19, .up = 0, .down = 23}, NMLP_DTYPE_BF16);
    desc.activation = activation;
    float *x = nmlp_test_floats(S * H, 45);
    float *seen[3];
    float y[S * H];
    nmlp_truth exact = nmlp_truth_of(x, S, H);
    for (int i = 0; i < 3; i++) seen[i] = nmlp_mem_new(S * I, sizeof(float), NULL);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        bool bf16 = nmlp_kernels_rounds_to_bf16(set);
        nmlp_mlp *mlp = create(set, &desc, pool);
        void *workspace = nmlp_mem_new(1, nmlp_mlp_observed_workspace_bytes(mlp, S, 2), NULL);
        nmlp_truth truth[] = {nmlp_truth_project(&exact, &desc.gate, bf16),
                              nmlp_truth_project(&exact, &desc.up, bf16),
                              {0},
                              nmlp_truth_mlp(&exact, &desc, bf16)};
        truth[2] = nmlp_truth_gate(&truth[0], &truth[1], desc.activation);
        for (int mask = 0; mask < 8; mask++) {
            nmlp_mlp_run_observed(mlp, y, x, S, mask & 1 ? seen[0] : NULL, mask & 2 ? seen[1] : NULL,
                                  mask & 4 ? seen[2] : NULL, workspace, pool);
            nmlp_assert_within(y, &truth[3], "y");
            for (int j = 0; j < 3; j++)
                if (mask & 1 << j) nmlp_assert_within(seen[j], &truth[j], "inside");
        }
        for (int j = 0; j < 4; j++) nmlp_truth_free(&truth[j]);
        nmlp_mem_free(workspace);
        nmlp_mlp_destroy(mlp);
    }
    for (int i = 0; i < 3; i++) nmlp_mem_free(seen[i]);
    nmlp_truth_free(&exact);
    nmlp_mem_free(x);
    free_desc(&desc);
    nmlp_pool_destroy(pool);
}

static void observed_run_shows_the_inside(void **state) {
    (void)state;
    check_observed(NMLP_ACTIVATION_SILU);
    check_observed(NMLP_ACTIVATION_GELU_TANH);
}

/* GELU instead of SiLU, fused: few rows and many, inner sizes of whole panels and not, dense and factorised. */
static void gelu_matches_float64(void **state) {
    (void)state;
    static const struct shape some[] = {{.h = 64, .i = 96}, {.h = 45, .i = 83, .gate = 19, .up = 19, .down = 23}};
    for (int j = 0; j < 4; j++) {
        int64_t s = j < 2 ? 3 : 70, h = some[j % 2].h;
        nmlp_mlp_desc desc = make_desc(some[j % 2], NMLP_DTYPE_BF16);
        desc.activation = NMLP_ACTIVATION_GELU_TANH;
        float *x = nmlp_test_floats(s * h, 46), *y = nmlp_mem_new((size_t)(s * h), sizeof *y, NULL);
        nmlp_truth exact = nmlp_truth_of(x, s, h);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            nmlp_mlp *mlp = create(set, &desc, NULL);
            void *workspace = nmlp_mem_new(1, nmlp_mlp_workspace_bytes(mlp, s, 1), NULL);
            nmlp_truth truth = nmlp_truth_mlp(&exact, &desc, nmlp_kernels_rounds_to_bf16(set));
            nmlp_mlp_run(mlp, y, x, s, workspace, NULL);
            nmlp_assert_within(y, &truth, nmlp_kernels_name(set));
            nmlp_truth_free(&truth);
            nmlp_mem_free(workspace);
            nmlp_mlp_destroy(mlp);
        }
        nmlp_truth_free(&exact);
        nmlp_mem_free(x);
        nmlp_mem_free(y);
        free_desc(&desc);
    }
}

static void special_values_stay_in_their_row(void **state) {
    (void)state;
    enum { S = 40, H = 33, BAD = 20 };
    nmlp_mlp_desc desc = make_desc((struct shape){.h = H, .i = 50, .gate = 9, .up = 9, .down = 11}, NMLP_DTYPE_BF16);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        nmlp_mlp *mlp = create(set, &desc, NULL);
        float *x = nmlp_test_floats(S * H, 46);
        float y[S * H];
        x[BAD * H + 3] = NAN;
        run(mlp, y, x, S, NULL);
        for (int j = 0; j < S * H; j++) assert_int_equal(isnan(y[j]) != 0, j / H == BAD);
        nmlp_mem_free(x);
        nmlp_mlp_destroy(mlp);
    }
    free_desc(&desc);
}

static void a_workspace_does_for_fewer_rows(void **state) {
    (void)state;
    nmlp_mlp_desc desc =
        make_desc((struct shape){.h = 64, .i = 3000, .gate = 20, .up = 20, .down = 0}, NMLP_DTYPE_BF16);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        nmlp_mlp *mlp = create(set, &desc, NULL);
        size_t before = 0;
        for (int64_t s = 1; s < 1500; s++) {
            size_t bytes = nmlp_mlp_workspace_bytes(mlp, s, 3);
            assert_true(bytes >= before);
            before = bytes;
        }
        nmlp_mlp_destroy(mlp);
    }
    free_desc(&desc);
}

static void wrong_shapes_are_refused(void **state) {
    (void)state;
    nmlp_err err;
    nmlp_mlp *mlp;
    const nmlp_kernels *set = nmlp_test_set(0);
    nmlp_mlp_desc desc = make_desc((struct shape){.h = 8, .i = 12, .gate = 3, .up = 3, .down = 3}, NMLP_DTYPE_F32);
    nmlp_mlp_desc broken = desc;
    broken.up.u.shape[1] = 2;
    nmlp_assert_fails(nmlp_mlp_create(&mlp, set, &broken, NULL, &err), &err, NMLP_E_SHAPE, "up", "[12,2]", "[3,8]",
                      NULL);
    broken = desc;
    broken.down.u.shape[0] = 7;
    nmlp_assert_fails(nmlp_mlp_create(&mlp, set, &broken, NULL, &err), &err, NMLP_E_SHAPE, "down [7,12]", NULL);
    broken = desc;
    broken.gate.w = desc.gate.u;
    nmlp_assert_fails(nmlp_mlp_create(&mlp, set, &broken, NULL, &err), &err, NMLP_E_ARG, "gate", "one of", NULL);
    free_desc(&desc);
}

static void plan_can_be_read(void **state) {
    (void)state;
    nmlp_mlp_desc desc =
        make_desc((struct shape){.h = 64, .i = 300, .gate = 20, .up = 20, .down = 20}, NMLP_DTYPE_BF16);
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        nmlp_str text;
        if (!set) continue;
        nmlp_mlp *mlp = create(set, &desc, NULL);
        nmlp_str_init(&text);
        nmlp_mlp_describe_blocking(mlp, 512, 2, &text);
        assert_non_null(strstr(nmlp_str_text(&text), nmlp_kernels_name(set)));
        assert_non_null(strstr(nmlp_str_text(&text), "rows="));
        nmlp_str_fini(&text);
        nmlp_mlp_destroy(mlp);
    }
    free_desc(&desc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shapes_match_float64),
        cmocka_unit_test(long_inputs_match_short_ones),
        cmocka_unit_test(few_rows_of_a_long_inside_match_float64),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(full_rank_equals_dense),
        cmocka_unit_test(bits_do_not_depend_on_other_rows),
        cmocka_unit_test(padding_changes_nothing),
        cmocka_unit_test(observed_run_shows_the_inside),
        cmocka_unit_test(gelu_matches_float64),
        cmocka_unit_test(special_values_stay_in_their_row),
        cmocka_unit_test(a_workspace_does_for_fewer_rows),
        cmocka_unit_test(wrong_shapes_are_refused),
        cmocka_unit_test(plan_can_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
