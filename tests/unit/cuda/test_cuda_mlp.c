/* The GPU's MLP: dense, low rank, shared basis and mixtures against float64, at every number of rows that takes another
 * path. */
#include <math.h>
#include <pthread.h>

#include "base/mem.h"
#include "cuda/cuda.h"
#include "lib/gpu.h"
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
    {1, 1, 0, 0, 0},
    {33, 50, 0, 0, 0},
    {40, 100, 17, 17, 33},
    {65, 31, 5, 9, 3},
    {31, 97, 20, -1, 35},
    {48, 64, 0, 16, 7},
    {48, 64, 16, 0, 0},
    {64, 128, 32, 32, 32},
    {130, 3000, 70, 200, 90},
    {700, 1900, 320, 320, 320},
    {512, 2048, 0, 0, 0},
    {2048, 1024, 0, 0, 0},
    {3000, 700, 1000, -1, 500},
};
static const int64_t row_counts[] = {1, 3, 4, 5, 8, 16, 17, 32, 33, 130, 300};
enum {
    N_SHAPES = sizeof shapes / sizeof shapes[0],
    N_ROW_COUNTS = sizeof row_counts / sizeof row_counts[0],
    ROWS_SPLIT = 4
};

static nmlp_factors make_factors(int64_t n, int64_t k, int64_t rank, uint64_t seed) {
    nmlp_factors f = {0};
    if (rank == 0) {
        f.w = nmlp_test_weight(n, k, NMLP_DTYPE_BF16, seed);
    } else {
        f.u = nmlp_test_weight(n, rank, NMLP_DTYPE_BF16, seed);
        f.v = nmlp_test_weight(rank, k, NMLP_DTYPE_BF16, seed + 1);
    }
    return f;
}

static nmlp_mlp_desc make_desc(struct shape s) {
    nmlp_mlp_desc d = {.gate = make_factors(s.i, s.h, s.gate, 10), .down = make_factors(s.h, s.i, s.down, 30)};
    if (s.up < 0) {
        d.up.u = nmlp_test_weight(s.i, s.gate, NMLP_DTYPE_BF16, 20);
        d.up.v = d.gate.v;
    } else {
        d.up = make_factors(s.i, s.h, s.up, 20);
    }
    return d;
}

static void free_desc(nmlp_mlp_desc *d) {
    if (d->up.v.data == d->gate.v.data) d->up.v.data = NULL;
    nmlp_factors *all[] = {&d->gate, &d->up, &d->down};
    for (int i = 0; i < 3; i++) {
        nmlp_test_weight_free(&all[i]->w);
        nmlp_test_weight_free(&all[i]->u);
        nmlp_test_weight_free(&all[i]->v);
    }
}

/* |got - want| / |want| over all elements. */
static double relative_error(const float *got, const double *want, int64_t n) {
    double off = 0;
    double size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += want[i] * want[i];
    }
    return isfinite(off) ? sqrt(off / size) : INFINITY;
}

/* Up to 4 rows every activation is a sum of two bf16 numbers: each of at most 4 roundings adds 2^-17 of the norm, and
 * exp 2^-20. More rows round to bf16 at each matmul (and, on the matmul path, gate and up before silu): at most 6
 * roundings of 2^-9. Each bound is that, doubled. */
static double allowed(int64_t s, nmlp_cuda_path path) {
    return s <= ROWS_SPLIT && path == NMLP_CUDA_PATH_FUSED ? 8 * 0x1p-17 + 0x1p-19 : 12 * 0x1p-9;
}

static const char *const path_names[] = {"auto", "stream", "matmul", "portable"};

static void check_rows(const nmlp_mlp_desc *desc, const float *x, const nmlp_truth *truth, int64_t s,
                       nmlp_cuda_path path, const char *what) {
    const nmlp_factors matrices[] = {desc->gate, desc->up, desc->down};
    nmlp_cuda_mlp *mlp;
    nmlp_err err;
    int64_t n = s * truth->cols;
    float *y = nmlp_mem_new((size_t)n, sizeof *y, NULL);
    float *again = nmlp_mem_new((size_t)n, sizeof *again, NULL);
    memset(y, 0xff, (size_t)n * sizeof *y);
    nmlp_assert_ok(nmlp_cuda_mlp_create(&mlp, matrices, s, path, &err), &err);
    nmlp_assert_ok(nmlp_cuda_mlp_run(mlp, y, x, &err), &err);
    double error = relative_error(y, truth->value, n);
    if (!(error <= allowed(s, path)))
        fail_msg("%s S=%lld %s: off by %.3g of the norm, %.3g is allowed", what, (long long)s, path_names[path], error,
                 allowed(s, path));
    for (int i = 0; i < 3; i++) {
        nmlp_assert_ok(nmlp_cuda_mlp_run(mlp, again, x, &err), &err);
        if (memcmp(y, again, (size_t)n * sizeof *y) != 0)
            fail_msg("%s S=%lld: another run gave other bits", what, (long long)s);
    }
    nmlp_cuda_mlp_destroy(mlp);
    nmlp_mem_free(again);
    nmlp_mem_free(y);
}

static void check_shape(struct shape shape, const int64_t *rows, int n_rows) {
    int64_t s_max = rows[n_rows - 1];
    char what[96];
    nmlp_mlp_desc desc = make_desc(shape);
    float *x = nmlp_test_floats(s_max * shape.h, 40);
    nmlp_truth exact = nmlp_truth_of(x, s_max, shape.h);
    nmlp_truth truth = nmlp_truth_mlp(&exact, &desc, false);
    snprintf(what, sizeof what, "H=%lld I=%lld ranks %lld,%lld,%lld", (long long)shape.h, (long long)shape.i,
             (long long)shape.gate, (long long)shape.up, (long long)shape.down);
    for (int r = 0; r < n_rows; r++) {
        if (rows[r] <= 32) check_rows(&desc, x, &truth, rows[r], NMLP_CUDA_PATH_FUSED, what);
        check_rows(&desc, x, &truth, rows[r], NMLP_CUDA_PATH_GEMM, what);
        if (rows[r] > ROWS_SPLIT) check_rows(&desc, x, &truth, rows[r], NMLP_CUDA_PATH_PORTABLE, what);
    }
    nmlp_truth_free(&truth);
    nmlp_truth_free(&exact);
    nmlp_mem_free(x);
    free_desc(&desc);
}

/* Little enough for a sanitizer that follows every access. */
static void few_shapes_match_float64(void **state) {
    static const int64_t rows[] = {1, 8, 33, 260};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (int i = 2; i < 5; i++) check_shape(shapes[i], rows, 4);
}

static void all_shapes_match_float64(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (int i = 0; i < N_SHAPES; i++) check_shape(shapes[i], row_counts, N_ROW_COUNTS);
}

/* More weights per block than its shared memory holds: the ring goes round several times within a phase, and gate and
 * up have unlike lengths. The last has more sums between clusters than blocks add at a time. */
static void long_products_match_float64(void **state) {
    static const struct shape long_shapes[] = {
        {4096, 1100, 0, 0, 0}, {2048, 4200, 640, 1500, 700}, {300, 2100, 40, 40, 2000}};
    static const int64_t rows[] = {2, 8, 16, 32};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (int i = 0; i < 3; i++) check_shape(long_shapes[i], rows, 4);
}

static void check_row_alone(const nmlp_factors matrices[3], int64_t s, int64_t h, float size) {
    enum { STRANGE = 3 };
    nmlp_cuda_mlp *mlp;
    nmlp_err err;
    float *x = nmlp_test_floats(s * h, 40);
    float *y = nmlp_mem_new((size_t)(s * h), sizeof *y, NULL);
    float *other = nmlp_mem_new((size_t)(s * h), sizeof *other, NULL);
    nmlp_assert_ok(nmlp_cuda_mlp_create(&mlp, matrices, s, NMLP_CUDA_PATH_FUSED, &err), &err);
    nmlp_assert_ok(nmlp_cuda_mlp_run(mlp, y, x, &err), &err);
    for (int64_t i = 0; i < h; i++) x[STRANGE * h + i] *= size;
    nmlp_assert_ok(nmlp_cuda_mlp_run(mlp, other, x, &err), &err);
    for (int64_t row = 0; row < s; row++)
        if (row != STRANGE && memcmp(y + row * h, other + row * h, (size_t)h * sizeof *y) != 0)
            fail_msg("S=%lld: row %lld has other bits where row %d is %g times as large", (long long)s, (long long)row,
                     STRANGE, (double)size);
    for (int64_t i = 0; i < h && !isfinite(size); i++) assert_false(isfinite(other[STRANGE * h + i]));
    nmlp_cuda_mlp_destroy(mlp);
    nmlp_mem_free(other);
    nmlp_mem_free(y);
    nmlp_mem_free(x);
}

/* A row as large as attention sinks make them, or not finite, leaves the others' bits alone, and is itself not finite
 * in the end. */
static void few_rows_are_alone(void **state) {
    static const int64_t rows[] = {8, 16, 32};
    static const float sizes[] = {4096.0f, INFINITY};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (int i = 3; i < 5; i++) {
        nmlp_mlp_desc desc = make_desc(shapes[i]);
        const nmlp_factors matrices[] = {desc.gate, desc.up, desc.down};
        for (int r = 0; r < 3; r++)
            for (int j = 0; j < 2; j++) check_row_alone(matrices, rows[r], shapes[i].h, sizes[j]);
        free_desc(&desc);
    }
}

/* Rows longer than a block's shared memory leaves room for: K is cut, and one block sums the pieces of 16 rows. */
static void pieces_of_k_match_float64(void **state) {
    static const struct shape longer = {300, 6000, 0, 0, 0};
    static const int64_t rows[] = {4};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    check_shape(longer, rows, 1);
}

/* S rows that repeat a few, so that the truth of all is soon known. */
static void check_repeated_rows(struct shape shape, int64_t s) {
    enum { DISTINCT = 37 };
    char what[96];
    nmlp_mlp_desc desc = make_desc(shape);
    float *few = nmlp_test_floats(DISTINCT * shape.h, 40);
    nmlp_truth exact = nmlp_truth_of(few, DISTINCT, shape.h);
    nmlp_truth truth = nmlp_truth_mlp(&exact, &desc, false);
    nmlp_truth all = {
        .rows = s, .cols = shape.h, .value = nmlp_mem_new((size_t)(s * shape.h), sizeof *all.value, NULL)};
    float *x = nmlp_mem_new((size_t)(s * shape.h), sizeof *x, NULL);
    for (int64_t r = 0; r < s; r++) {
        memcpy(x + r * shape.h, few + r % DISTINCT * shape.h, (size_t)shape.h * sizeof *x);
        memcpy(all.value + r * shape.h, truth.value + r % DISTINCT * shape.h, (size_t)shape.h * sizeof *all.value);
    }
    snprintf(what, sizeof what, "H=%lld I=%lld, repeated rows", (long long)shape.h, (long long)shape.i);
    check_rows(&desc, x, &all, s, NMLP_CUDA_PATH_GEMM, what);
    nmlp_truth_free(&truth);
    nmlp_truth_free(&exact);
    nmlp_truth_free(&all);
    nmlp_mem_free(few);
    nmlp_mem_free(x);
    free_desc(&desc);
}

/* Gate and up of more tiles than a device has multiprocessors, in several bands, with products shorter and longer than
 * what is done beside them; and matmuls large enough to be measured. */
static void many_tiles_match_float64(void **state) {
    static const struct shape tall = {200, 1100, 100, 600, 0};
    static const struct shape wide = {600, 9000, 0, 100, 700};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    check_repeated_rows(tall, 4500);
    check_repeated_rows(wide, 2700);
}

/* Weights of other types are rounded to bf16 on upload. */
static void f32_weights_are_rounded(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    enum { H = 72, I = 200 };
    const nmlp_factors wide[] = {{.w = nmlp_test_weight(I, H, NMLP_DTYPE_F32, 1)},
                                 {.w = nmlp_test_weight(I, H, NMLP_DTYPE_F32, 2)},
                                 {.w = nmlp_test_weight(H, I, NMLP_DTYPE_F32, 3)}};
    nmlp_factors narrow[3];
    nmlp_cuda_mlp *mlp;
    nmlp_err err;
    float y[H];
    float want[H];
    float *x = nmlp_test_floats(H, 4);
    for (int i = 0; i < 3; i++) {
        int64_t n = nmlp_view_elems(&wide[i].w);
        uint16_t *bits = nmlp_mem_new((size_t)n, sizeof *bits, NULL);
        nmlp_from_f32(bits, NMLP_DTYPE_BF16, wide[i].w.data, (size_t)n);
        narrow[i] = (nmlp_factors){.w = nmlp_view_2d(bits, NMLP_DTYPE_BF16, wide[i].w.shape[0], wide[i].w.shape[1])};
    }
    nmlp_assert_ok(nmlp_cuda_mlp_create(&mlp, narrow, 1, NMLP_CUDA_PATH_AUTO, &err), &err);
    nmlp_assert_ok(nmlp_cuda_mlp_run(mlp, want, x, &err), &err);
    nmlp_cuda_mlp_destroy(mlp);
    nmlp_assert_ok(nmlp_cuda_mlp_create(&mlp, wide, 1, NMLP_CUDA_PATH_AUTO, &err), &err);
    nmlp_assert_ok(nmlp_cuda_mlp_run(mlp, y, x, &err), &err);
    nmlp_cuda_mlp_destroy(mlp);
    assert_memory_equal(y, want, sizeof y);
    for (int i = 0; i < 3; i++) {
        nmlp_view view = wide[i].w;
        nmlp_test_weight_free(&view);
        nmlp_test_weight_free(&narrow[i].w);
    }
    nmlp_mem_free(x);
}

/* An MLP whose runs are repeated while another one's are. */
struct repeated {
    nmlp_cuda_mlp *mlp;
    const float *x;
    float *want;
    float *y;
    size_t bytes; /* of y */
    int n_wrong;
};

static void *repeat(void *argument) {
    enum { RUNS = 300 };
    struct repeated *r = argument;
    nmlp_err err;
    for (int i = 0; i < RUNS; i++)
        if (nmlp_cuda_mlp_run(r->mlp, r->y, r->x, &err) != NMLP_OK || memcmp(r->y, r->want, r->bytes) != 0)
            r->n_wrong++;
    return NULL;
}

/* Every one of these kernels waits for its own blocks and wants the whole chip: launched by two threads they must not
 * keep each other's blocks from starting. */
static void two_threads_get_what_one_gets(void **state) {
    static const int64_t rows[][2] = {{32, 32}, {8, 1}, {1, 1}, {16, 300}};
    const struct shape shape = {700, 1900, 320, 320, 320};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    nmlp_mlp_desc desc = make_desc(shape);
    const nmlp_factors matrices[] = {desc.gate, desc.up, desc.down};
    float *x = nmlp_test_floats(300 * shape.h, 40);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct repeated both[2] = {0};
        pthread_t threads[2];
        nmlp_err err;
        for (int j = 0; j < 2; j++) {
            size_t n = (size_t)(rows[i][j] * shape.h);
            both[j] = (struct repeated){.x = x,
                                        .want = nmlp_mem_new(n, sizeof *x, NULL),
                                        .y = nmlp_mem_new(n, sizeof *x, NULL),
                                        .bytes = n * sizeof *x};
            nmlp_assert_ok(nmlp_cuda_mlp_create(&both[j].mlp, matrices, rows[i][j], NMLP_CUDA_PATH_AUTO, &err), &err);
            nmlp_assert_ok(nmlp_cuda_mlp_run(both[j].mlp, both[j].want, x, &err), &err);
        }
        for (int j = 0; j < 2; j++) assert_int_equal(pthread_create(&threads[j], NULL, repeat, &both[j]), 0);
        for (int j = 0; j < 2; j++) {
            assert_int_equal(pthread_join(threads[j], NULL), 0);
            assert_int_equal(both[j].n_wrong, 0);
            nmlp_cuda_mlp_destroy(both[j].mlp);
            nmlp_mem_free(both[j].want);
            nmlp_mem_free(both[j].y);
        }
    }
    nmlp_mem_free(x);
    free_desc(&desc);
}

static void too_much_memory_says_how_much(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    nmlp_mlp_desc desc = make_desc(shapes[10]);
    const nmlp_factors matrices[] = {desc.gate, desc.up, desc.down};
    nmlp_cuda_mlp *mlp;
    nmlp_err err;
    nmlp_assert_fails(nmlp_cuda_mlp_create(&mlp, matrices, 100000000, NMLP_CUDA_PATH_AUTO, &err), &err, NMLP_E_NOMEM,
                      "needs", "GB", "free", NULL);
    assert_null(mlp);
    free_desc(&desc);
}

/* More than any CPU's memory moves, and than the vector units of a GPU multiply; less than ten times an H200's. */
static void limits_are_those_of_a_gpu(void **state) {
    double copy, matmul;
    nmlp_err err;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    nmlp_assert_ok(nmlp_cuda_copy_rate(&copy, &err), &err);
    nmlp_assert_ok(nmlp_cuda_matmul_rate(&matmul, &err), &err);
    assert_true(copy > 1e11 && copy < 5e13);
    assert_true(matmul > 1e13 && matmul < 1e16);
}

/* The argument names the tests to run, with * and ?; none: all. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_shapes_match_float64),      cmocka_unit_test(all_shapes_match_float64),
        cmocka_unit_test(long_products_match_float64),   cmocka_unit_test(few_rows_are_alone),
        cmocka_unit_test(pieces_of_k_match_float64),     cmocka_unit_test(many_tiles_match_float64),
        cmocka_unit_test(f32_weights_are_rounded),       cmocka_unit_test(two_threads_get_what_one_gets),
        cmocka_unit_test(too_much_memory_says_how_much), cmocka_unit_test(limits_are_those_of_a_gpu),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
