/* Norm, rotation, sum, and the element-wise helpers of every set, exp above all. */
#include <math.h>

#include "base/mem.h"
#include "kernels/ops/vec.h"
#include "lib/guard.h"
#include "lib/testing.h"
#include "lib/truth.h"

static const double U32 = 0x1p-24;

static float *guarded_copy(nmlp_guarded *guarded, const float *x, int64_t n) {
    float *copy = nmlp_guard_end(guarded, (size_t)n * sizeof *copy);
    memcpy(copy, x, (size_t)n * sizeof *copy);
    return copy;
}

static void check_norm(int64_t s, int64_t h, nmlp_pool *pool) {
    nmlp_guarded guarded;
    float *random = nmlp_test_floats(s * h, 1);
    float *weight = nmlp_test_floats(h, 2);
    float *x = guarded_copy(&guarded, random, s * h);
    nmlp_rmsnorm(x, x, weight, 1e-5f, s, h, pool);
    for (int64_t i = 0; i < s; i++) {
        double squares = 0.0;
        for (int64_t j = 0; j < h; j++) squares += (double)random[i * h + j] * random[i * h + j];
        double inverse = 1.0 / sqrt(squares / (double)h + 1e-5f);
        for (int64_t j = 0; j < h; j++) {
            double want = random[i * h + j] * inverse * weight[j];
            /* half the relative error of the sum of h squares, and six roundings */
            assert_true(fabs(x[i * h + j] - want) <= ((double)h / 2 + 6.0) * U32 * fabs(want));
        }
    }
    nmlp_guard_free(&guarded);
    nmlp_mem_free(random);
    nmlp_mem_free(weight);
}

static void rmsnorm_matches_float64_in_place(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {1, 2048}, {3, 33}, {17, 100}, {64, 513}};
    nmlp_pool *pool = nmlp_test_pool(3);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) check_norm(sizes[i][0], sizes[i][1], pool);
    nmlp_pool_destroy(pool);
}

static void rope_rotates_the_halves(void **state) {
    (void)state;
    enum { S = 9, HEADS = 3, FIRST = 5 };
    static const int64_t dims[] = {2, 8, 34, 64, 80};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        int64_t dim = dims[i];
        int64_t half = dim / 2;
        nmlp_guarded guarded[2];
        float *random = nmlp_test_floats(S * HEADS * dim, 3);
        float *angles = nmlp_test_floats((FIRST + S) * dim, 4);
        float *x = guarded_copy(&guarded[0], random, S * HEADS * dim);
        float *table = guarded_copy(&guarded[1], angles, (FIRST + S) * dim);
        nmlp_rope(x, &(nmlp_rotation){table, dim}, S, FIRST, HEADS, dim, NULL);
        for (int64_t at = 0; at < S * HEADS * half; at++) {
            int64_t head = at / half;
            int64_t j = at % half;
            const float *row = table + (FIRST + head / HEADS) * dim;
            double a = random[head * dim + j];
            double b = random[head * dim + half + j];
            double low = a * row[j] - b * row[half + j];
            double high = b * row[j] + a * row[half + j];
            double bound = 2.0 * U32 * (fabs(a) + fabs(b)) * (fabs((double)row[j]) + fabs((double)row[half + j]));
            assert_true(fabs(x[head * dim + j] - low) <= bound);
            assert_true(fabs(x[head * dim + half + j] - high) <= bound);
        }
        for (int g = 0; g < 2; g++) nmlp_guard_free(&guarded[g]);
        nmlp_mem_free(random);
        nmlp_mem_free(angles);
    }
}

static void add_is_exact(void **state) {
    (void)state;
    enum { N = 40001 };
    nmlp_guarded guarded[2];
    nmlp_pool *pool = nmlp_test_pool(2);
    float *a = nmlp_test_floats(N, 5);
    float *b = nmlp_test_floats(N, 6);
    float *x = guarded_copy(&guarded[0], a, N);
    float *y = guarded_copy(&guarded[1], b, N);
    nmlp_add(x, y, N, pool);
    for (int i = 0; i < N; i++) assert_true(x[i] == a[i] + b[i]);
    for (int g = 0; g < 2; g++) nmlp_guard_free(&guarded[g]);
    nmlp_mem_free(a);
    nmlp_mem_free(b);
    nmlp_pool_destroy(pool);
}

/* The helper tables this CPU can run. */
static int tables(const nmlp_vec *out[3]) {
    int n = 0;
    out[n++] = &nmlp_vec_ref;
#if defined(__x86_64__)
    const nmlp_cpu *cpu = nmlp_cpu_get();
    if (cpu->avx2_fma) out[n++] = &nmlp_vec_avx2;
    if (cpu->avx512) out[n++] = &nmlp_vec_avx512;
#endif
    return n;
}

/* The softmax of one key is 1 and of two keys 1 and exp(-d): shows exp alone. */
static float exp_through_softmax(const nmlp_vec *vec, float x) {
    _Alignas(64) float scores[16] = {0.0f, x};
    _Alignas(64) float p[16];
    nmlp_vec_softmax row = {
        .scores = scores, .strips = 1, .n = 2, .n_padded = 16, .scale = 1.0f, .line = p, .step = 64, .max = -INFINITY};
    vec->softmax(&row);
    return p[1];
}

static void exp_is_right_to_two_units(void **state) {
    (void)state;
    const nmlp_vec *table[3];
    int n = tables(table);
    for (int i = 0; i < n; i++) {
        for (double x = -87.0; x <= 0.0; x += 0.00317) {
            double want = exp((double)(float)x);
            assert_true(fabs(exp_through_softmax(table[i], (float)x) - want) <= 4.0 * U32 * want);
        }
        /* below, it is held at exp(-87): next to 1, which one score of every row has, that is nothing */
        static const float low[] = {-88.0f, -95.0f, -110.0f, -1e30f, -INFINITY};
        for (int j = 0; j < 5; j++) assert_true(fabs(exp_through_softmax(table[i], low[j])) <= 1.7e-38);
    }
}

static void silu_matches_float64_everywhere(void **state) {
    (void)state;
    const nmlp_vec *table[3];
    int n = tables(table);
    for (int i = 0; i < n; i++) {
        for (double x = -100.0; x <= 100.0; x += 0.0137) {
            float gate[16];
            float up[16];
            float act[16];
            for (int j = 0; j < 16; j++) gate[j] = (float)x, up[j] = 1.0f;
            table[i]->silu_mul(act, gate, up, 16);
            double want = (float)x / (1.0 + exp(-(double)(float)x));
            /* below -87 the sigmoid may be held at exp(-87), which is off by less than 100 exp(-87) = 1.7e-36 */
            for (int j = 0; j < 16; j++) assert_true(fabs(act[j] - want) <= 8.0 * U32 * fabs(want) + 1.7e-36);
        }
        float special[3] = {NAN, INFINITY, 90.0f};
        float one[3] = {1.0f, 1.0f, 1.0f};
        table[i]->silu_mul(special, special, one, 3);
        assert_true(isnan(special[0]) && special[1] == INFINITY && special[2] == 90.0f);
    }
}

static void tiles_get_rounded_values_and_zeros(void **state) {
    (void)state;
    const nmlp_vec *table[3];
    int n = tables(table);
    for (int i = 0; i < n; i++) {
        for (int64_t len = 0; len <= 64; len++) {
            float *x = nmlp_test_floats(64, 7);
            _Alignas(64) uint16_t half[4][32];
            _Alignas(64) float full[8][16];
            x[3] = NAN;
            memset(half, 0xff, sizeof half);
            memset(full, 0xff, sizeof full);
            nmlp_vec_put put = {.dst = half, .step = 128, .src = x, .n_rows = 1, .n = len, .n_padded = 64};
            table[i]->put_bf16(&put);
            put.dst = full;
            table[i]->put_f32(&put);
            for (int64_t j = 0; j < 64; j++) {
                uint16_t want = j < len ? nmlp_f32_to_bf16(x[j]) : 0;
                assert_int_equal(half[j / 32 * 2][j % 32], want);
                float want_full = j < len ? x[j] : 0.0f;
                assert_memory_equal(&full[j / 16 * 2][j % 16], &want_full, sizeof want_full);
            }
            assert_int_equal(half[1][0], 0xffff);
            nmlp_mem_free(x);
        }
    }
}

static void transpose_moves_every_element(void **state) {
    (void)state;
    const nmlp_vec *table[3];
    int n_tables = tables(table);
    for (int i = 0; i < n_tables; i++) {
        for (int64_t rows = 0; rows <= 16; rows++) {
            for (int64_t n = 1; n <= 70; n += 23) {
                enum { STRIDE = 70 };
                nmlp_guarded guarded;
                float *random = nmlp_test_floats(16 * STRIDE, 8);
                int64_t used = rows ? (rows - 1) * STRIDE + n : 0;
                float *src = guarded_copy(&guarded, random, used);
                _Alignas(64) float dst[70 * 16];
                table[i]->transpose(dst, src, STRIDE, rows, n);
                for (int64_t k = 0; k < n; k++)
                    for (int64_t j = 0; j < 16; j++)
                        assert_true(dst[k * 16 + j] == (j < rows ? random[j * STRIDE + k] : 0.0f));
                nmlp_guard_free(&guarded);
                nmlp_mem_free(random);
            }
        }
    }
}

/* A distribution against another, in plain double precision. */
static void distributions_compare_as_in_float64(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 15, 16, 513, 5000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t n = sizes[i];
        nmlp_guarded guarded[2];
        float *a = nmlp_test_floats(n, 11), *b = nmlp_test_floats(n, 12);
        for (int64_t k = 0; k < n; k++) a[k] = 20 * a[k] - 3, b[k] = 20 * b[k];
        float *x = guarded_copy(&guarded[0], a, n), *y = guarded_copy(&guarded[1], b, n);
        double sum = 0, difference = 0;
        for (int64_t k = 0; k < n; k++) {
            sum += exp((double)x[k]);
            difference += exp((double)x[k]) * ((double)x[k] - (double)y[k]);
        }
        nmlp_softmax_view got = nmlp_softmax_compare(x, y, n);
        /* an exponential to 2 ulp, differences of size 40, runs of 32 f32 sums in each lane */
        assert_true(fabs(got.log_sum - log(sum)) <= 40 * U32 * fabs(log(sum)) + 40 * U32);
        assert_true(fabs(got.mean_difference - difference / sum) <= 80 * U32 * 40);
        assert_true(nmlp_softmax_compare(x, NULL, n).mean_difference == 0);
        for (int g = 0; g < 2; g++) nmlp_guard_free(&guarded[g]);
        nmlp_mem_free(a);
        nmlp_mem_free(b);
    }
}

static void check_squares(const nmlp_vec *vec, nmlp_activation activation, int64_t tokens, int64_t neurons) {
    int64_t stride = neurons + 3;
    float *gate = nmlp_test_floats(tokens * stride, 13), *up = nmlp_test_floats(tokens * stride, 14);
    float *sums = nmlp_mem_new((size_t)(3 * neurons), sizeof *sums, NULL);
    nmlp_vec_glu block = {.gate = gate,
                          .up = up,
                          .stride = stride,
                          .n_tokens = tokens,
                          .activation = activation,
                          .n = neurons,
                          .gate2 = sums,
                          .slope2 = sums + neurons,
                          .act2 = sums + 2 * neurons};
    for (int64_t i = 0; i < tokens * stride; i++) gate[i] *= 8;
    vec->glu_squares(&block);
    for (int64_t j = 0; j < neurons; j++) {
        double want[3] = {0};
        for (int64_t t = 0; t < tokens; t++) {
            double g = gate[t * stride + j], u = up[t * stride + j];
            bool gelu = activation == NMLP_ACTIVATION_GELU_TANH;
            double z = gelu ? 2 * sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g) : g;
            double inner = gelu ? 2 * sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * g * g) : 1;
            double sigmoid = 1 / (1 + exp(-z));
            double values[3] = {g * sigmoid, u * sigmoid * (1 + g * inner * (1 - sigmoid)), g * sigmoid * u};
            for (int i = 0; i < 3; i++) want[i] += values[i] * values[i];
        }
        for (int i = 0; i < 3; i++) {
            double got = sums[i * neurons + j];
            assert_true(fabs(got - want[i]) <= (30.0 + (double)tokens) * U32 * (want[i] + 1e-2));
        }
    }
    nmlp_mem_free(gate);
    nmlp_mem_free(up);
    nmlp_mem_free(sums);
}

static void squares_of_neurons_match_float64(void **state) {
    (void)state;
    const nmlp_vec *table[3];
    int n = tables(table);
    for (int i = 0; i < n; i++) {
        check_squares(table[i], NMLP_ACTIVATION_SILU, 1, 1);
        check_squares(table[i], NMLP_ACTIVATION_SILU, 32, 64);
        check_squares(table[i], NMLP_ACTIVATION_SILU, 7, 37);
        check_squares(table[i], NMLP_ACTIVATION_GELU_TANH, 32, 64);
        check_squares(table[i], NMLP_ACTIVATION_GELU_TANH, 7, 37);
    }
}

/* Sums over many tokens on several threads go on where they were. */
static void squares_add_to_what_is_there(void **state) {
    (void)state;
    enum { S = 75, N = 130 };
    float *gate = nmlp_test_floats(S * N, 15), *up = nmlp_test_floats(S * N, 16);
    double got[3][N], alone[3][N], want[N] = {0};
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < N; j++) got[i][j] = alone[i][j] = 5;
    nmlp_glu_squares_add(&(nmlp_glu_squares){.gate2 = got[0], .slope2 = got[1], .act2 = got[2]}, gate, up, S, N, pool);
    nmlp_glu_squares_add(&(nmlp_glu_squares){.gate2 = alone[0], .slope2 = alone[1], .act2 = alone[2]}, gate, up, S, N,
                         NULL);
    assert_memory_equal(got, alone, sizeof got);
    for (int i = 0; i < S * N; i++) {
        double act = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];
        want[i % N] += act * act;
    }
    for (int j = 0; j < N; j++) assert_true(fabs(got[2][j] - 5 - want[j]) <= 60 * U32 * (5 + want[j]));
    nmlp_pool_destroy(pool);
    nmlp_mem_free(gate);
    nmlp_mem_free(up);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distributions_compare_as_in_float64),
        cmocka_unit_test(squares_of_neurons_match_float64),
        cmocka_unit_test(squares_add_to_what_is_there),
        cmocka_unit_test(rmsnorm_matches_float64_in_place),
        cmocka_unit_test(rope_rotates_the_halves),
        cmocka_unit_test(add_is_exact),
        cmocka_unit_test(exp_is_right_to_two_units),
        cmocka_unit_test(silu_matches_float64_everywhere),
        cmocka_unit_test(tiles_get_rounded_values_and_zeros),
        cmocka_unit_test(transpose_moves_every_element),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
