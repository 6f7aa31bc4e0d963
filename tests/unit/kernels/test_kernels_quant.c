/* Weights in 8 to 4 bits: every set against float64, and sets against each other. */
#include <math.h>

#include "base/mem.h"
#include "lib/guard.h"
#include "lib/testing.h"
#include "lib/truth.h"
#include "tensor/quant.h"

#if defined(__x86_64__)
#include "kernels/gemm/quant_unpack.h"
#include "kernels/isa/avx512/quant_unpack_avx512bf16.h"
#include "kernels/isa/avx512/gemm_quant_avx512.h"
#endif

static const int groups[] = {0, 32, 64, 32, 64}; /* 0: Q8 */
static const bool has_zeros[] = {false, false, false, true, true};
enum { N_GROUPS = 5, FP8 = N_GROUPS, Q4M = 9, N_KINDS };
static const nmlp_dtype other_types[] = {NMLP_DTYPE_FP8, NMLP_DTYPE_Q6, NMLP_DTYPE_Q6M, NMLP_DTYPE_Q5M, NMLP_DTYPE_Q4M};

static nmlp_view weight_of(int kind, int64_t n, int64_t k, uint64_t seed) {
    if (kind >= FP8) return nmlp_test_weight(n, k, other_types[kind - FP8], seed);
    return has_zeros[kind] ? nmlp_test_with_zeros(n, k, groups[kind], seed)
                           : nmlp_test_quantised(n, k, groups[kind], seed);
}

static nmlp_linear *create(const nmlp_kernels *set, const nmlp_view *w) {
    nmlp_linear *linear;
    nmlp_err err;
    nmlp_assert_ok(nmlp_linear_create(&linear, set, w, NULL, NULL, &err), &err);
    return linear;
}

static void run(const nmlp_linear *linear, float *y, const float *x, int64_t s, nmlp_pool *pool) {
    nmlp_guarded guarded;
    void *workspace = nmlp_guard_end(&guarded, nmlp_linear_workspace_bytes(linear, s, nmlp_pool_threads(pool)));
    nmlp_linear_run(linear, y, x, s, workspace, pool);
    nmlp_guard_free(&guarded);
}

static void rounding_is_to_the_nearest_code(void **state) {
    enum { K = 150 };
    (void)state;
    float *w = nmlp_test_floats(K, 1);
    float back[K];
    for (int g = 0; g < N_GROUPS; g++) {
        int8_t q8[K];
        uint8_t q4[(K + 1) / 2];
        float scale;
        uint16_t halves[5];
        int8_t zeros[5];
        nmlp_view view =
            groups[g] ? nmlp_quant_view_q4(q4, halves, groups[g], 1, K) : nmlp_quant_view_q8(q8, &scale, 1, K);
        if (groups[g])
            nmlp_quant_row_q4(q4, halves, has_zeros[g] ? zeros : NULL, groups[g], w, K);
        else
            nmlp_quant_row_q8(q8, &scale, w, K);
        if (has_zeros[g]) view.per_group = zeros;
        nmlp_quant_row_to_f32(back, &view, 0);
        for (int i = 0; i < K; i++) {
            double step = groups[g] ? fabs((double)nmlp_f16_to_f32(halves[i / groups[g]])) : (double)scale;
            /* The largest value has a code of its own; of Q4 its negative has none, and f16 rounds the scale. */
            double most = groups[g] ? 1.01 * step : 0.501 * step;
            assert_true(fabs((double)back[i] - (double)w[i]) <= most);
        }
    }
    nmlp_mem_free(w);
}

static void zeros_stay_zeros(void **state) {
    float w[40] = {0}, back[40];
    uint8_t q4[20];
    uint16_t halves[2];
    int8_t q8[40];
    float scale;
    (void)state;
    nmlp_quant_row_q4(q4, halves, NULL, 32, w, 40);
    nmlp_view view = nmlp_quant_view_q4(q4, halves, 32, 1, 40);
    nmlp_quant_row_to_f32(back, &view, 0);
    for (int i = 0; i < 40; i++) assert_true(back[i] == 0.0f);
    nmlp_quant_row_q8(q8, &scale, w, 40);
    view = nmlp_quant_view_q8(q8, &scale, 1, 40);
    nmlp_quant_row_to_f32(back, &view, 0);
    for (int i = 0; i < 40; i++) assert_true(back[i] == 0.0f);
}

/* Whether s rows that meet Q8 weights of k inputs are rounded to int8. */
static bool rounds_to_int8(const nmlp_kernels *set, int64_t s, int64_t k, int group) {
    int64_t exact_rows = strcmp(nmlp_kernels_name(set), "avx512bf16") == 0 ? 12 : 8;
    return nmlp_kernels_rounds_to_bf16(set) && group == 0 && s > exact_rows && (k + 31) / 32 % 2 == 0;
}

/* The rows rounded to int8, a scale each. */
static float *rounded_rows(const float *x, int64_t s, int64_t k) {
    float *y = nmlp_mem_new((size_t)(s * k), sizeof *y, NULL);
    for (int64_t row = 0; row < s; row++) {
        float peak = 0.0f;
        for (int64_t i = 0; i < k; i++) peak = fmaxf(peak, fabsf(x[row * k + i]));
        for (int64_t i = 0; i < k; i++) y[row * k + i] = rintf(x[row * k + i] * (127.0f / peak)) * (peak / 127.0f);
    }
    return y;
}

static void linear_matches_float64(void **state) {
    static const struct {
        int64_t s, n, k;
    } shapes[] = {{1, 1, 1},     {1, 16, 32},   {1, 70, 512},  {1, 20, 8500}, {2, 17, 33},    {3, 31, 5},
                  {5, 33, 100},  {6, 96, 300},  {7, 47, 77},   {8, 63, 129},  {12, 64, 48},   {13, 5, 2},
                  {16, 100, 65}, {17, 48, 191}, {31, 97, 66},  {33, 33, 33},  {61, 130, 900}, {70, 50, 512},
                  {129, 35, 37}, {400, 34, 95}, {2, 64, 4100}, {33, 70, 640}, {520, 96, 64}};
    nmlp_pool *pool = nmlp_test_pool(2);
    (void)state;
#ifdef NMLP_SANITIZED /* which take ten times as long: without the largest */
    size_t n_shapes = 16;
#else
    size_t n_shapes = sizeof shapes / sizeof shapes[0];
#endif
    for (size_t j = 0; j < n_shapes; j++)
        for (int g = 0; g < N_KINDS; g++) {
            int64_t s = shapes[j].s, n = shapes[j].n, k = shapes[j].k;
            nmlp_view w = weight_of(g, n, k, 1);
            float *x = nmlp_test_floats(s * k, 2);
            float *int8 = rounded_rows(x, s, k);
            nmlp_truth exact = nmlp_truth_of(x, s, k), rounded = nmlp_truth_of(int8, s, k);
            for (int i = 0; i < NMLP_TEST_SETS; i++) {
                const nmlp_kernels *set = nmlp_test_set(i);
                char what[128];
                nmlp_guarded guarded;
                if (!set) continue;
                nmlp_linear *linear = create(set, &w);
                float *y = nmlp_guard_end(&guarded, (size_t)(s * n) * sizeof *y);
                nmlp_truth truth = g != FP8 && rounds_to_int8(set, s, k,
                                                              g == Q4M  ? 16
                                                              : g > FP8 ? 0
                                                                        : groups[g])
                                       ? nmlp_truth_matmul(&rounded, &w, NULL, false)
                                       : nmlp_truth_matmul(&exact, &w, NULL, nmlp_kernels_rounds_to_bf16(set));
                run(linear, y, x, s, pool);
                snprintf(what, sizeof what, "%s kind %d S=%lld N=%lld K=%lld", nmlp_kernels_name(set), g, (long long)s,
                         (long long)n, (long long)k);
                nmlp_assert_within(y, &truth, what);
                nmlp_truth_free(&truth);
                nmlp_guard_free(&guarded);
                nmlp_linear_destroy(linear);
            }
            nmlp_truth_free(&exact);
            nmlp_truth_free(&rounded);
            nmlp_mem_free(x);
            nmlp_mem_free(int8);
            nmlp_test_weight_free(&w);
        }
    nmlp_pool_destroy(pool);
}

/* Alone or among others, on one thread or three: the same bits. */
static void bits_depend_neither_on_rows_nor_on_threads(void **state) {
    static const int64_t chunks[] = {1, 5, 7, 13, 61};
    enum { S = 130, N = 150, K = 1300 };
    nmlp_pool *pool = nmlp_test_pool(3);
    float *x = nmlp_test_floats(S * K, 5);
    float *all = nmlp_mem_new(S * N, sizeof *all, NULL);
    float *some = nmlp_mem_new(S * N, sizeof *some, NULL);
    (void)state;
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set || nmlp_kernels_rounds_to_bf16(set)) continue;
        for (int g = 0; g < N_KINDS; g++) {
            nmlp_view w = weight_of(g, N, K, 4);
            nmlp_linear *linear = create(set, &w);
            run(linear, all, x, S, NULL);
            for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
                for (int64_t at = 0; at < S; at += chunks[c])
                    run(linear, some + at * N, x + at * K, S - at < chunks[c] ? S - at : chunks[c], pool);
                assert_memory_equal(some, all, S * N * sizeof *all);
            }
            nmlp_linear_destroy(linear);
            nmlp_test_weight_free(&w);
        }
    }
    nmlp_mem_free(x);
    nmlp_mem_free(all);
    nmlp_mem_free(some);
    nmlp_pool_destroy(pool);
}

/* Fewer bits are codes of 8 too: a Q8 matrix with the same ones gives the same bits, in every set, down to the code of
 * -128. */
static void fewer_bits_have_the_bits_of_eight(void **state) {
    enum { S = 21, N = 37, K = 330 };
    static const int steps[] = {0, 1, 1, 2}; /* of multipliers: Q6 has none */
    float got[S * N], want[S * N], *x = nmlp_test_floats(S * K, 3);
    (void)state;
    for (int t = 0; t < 4; t++) {
        nmlp_view narrow = nmlp_test_weight(N, K, other_types[1 + t], 9);
        const int bits = t == 3 ? 4 : t == 2 ? 5 : 6, groups_of_row = (K + 15) / 16;
        int8_t codes[N * K];
        int least = 0;
        for (int i = 0; i < N * K; i++) { /* bits as the format's description counts them */
            const uint8_t *row = nmlp_view_row(&narrow, i / K);
            int code = -(1 << (bits - 1)), m = t ? steps[t] * narrow.per_group[i / K * groups_of_row + i % K / 16] : 1;
            for (int b = i % K * bits; b < (i % K + 1) * bits; b++)
                code += (row[b / 8] >> b % 8 & 1) << (b - i % K * bits);
            codes[i] = (int8_t)(code * m);
            assert_int_equal(codes[i], code * m);
            if (code * m < least) least = code * m;
        }
        assert_int_equal(least, t ? -128 : -32);
        nmlp_view wide = nmlp_quant_view_q8(codes, narrow.scales, N, K);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            nmlp_linear *few = create(set, &narrow), *eight = create(set, &wide);
            for (int s = 1; s <= S; s += 10) {
                run(few, got, x, s, NULL);
                run(eight, want, x, s, NULL);
                assert_memory_equal(got, want, sizeof *got * (size_t)(s * N));
            }
            nmlp_linear_destroy(few);
            nmlp_linear_destroy(eight);
        }
        nmlp_test_weight_free(&narrow);
    }
    nmlp_mem_free(x);
}

#if defined(__x86_64__)
/* Micro-tiles of 1 x 64, which has kernels of its own with VNNI, and 3 x 64, with random bytes for codes. */
static void vnni_and_plain_avx512_have_the_same_bits(void **state) {
    enum { ROWS = 3, K = 2 * NMLP_SPAN, STRIPS = 4, CODES = NMLP_SPAN * 8 };
    static _Alignas(64) char codes[STRIPS][K * 16];
    static _Alignas(64) int16_t a[K / 32 * ROWS * 32];
    static _Alignas(64) float c[2][ROWS * 64];
    float a_scales[K / 32 * ROWS];
    uint64_t seed = 1;
    (void)state;
    if (!nmlp_cpu_get()->avx512_vnni) skip();
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i / sizeof codes[0]][i % sizeof codes[0]] = (char)(seed = seed * 6364136223846793005u + 1, seed >> 33);
    for (size_t i = 0; i < sizeof a / sizeof *a; i++)
        a[i] = (int16_t)((int)((seed = seed * 6364136223846793005u + 1) >> 40) % 32767);
    for (size_t i = 0; i < sizeof a_scales / sizeof *a_scales; i++) a_scales[i] = 0.001f * (float)(i + 1);
    nmlp_gemm_microkernel *const kernels[3][2] = {{nmlp_gemm_q8_64_avx512, nmlp_gemm_q8_64_avx512vnni},
                                                  {nmlp_gemm_q4_64_avx512, nmlp_gemm_q4_64_avx512vnni},
                                                  {nmlp_gemm_q4m_64_avx512, nmlp_gemm_q4m_64_avx512vnni}};
    const nmlp_gemm_span spans[] = {{.bytes = NMLP_SPAN * 16},
                                    {.bytes = CODES + 128, .scales_at = CODES, .group_shift = 5},
                                    {.bytes = CODES + 128, .per_group_at = CODES, .group_shift = 4}};
    uint16_t ones[NMLP_SPAN / 32 * 16];
    for (int j = 0; j < NMLP_SPAN / 32 * 16; j++) ones[j] = 0x3c00;
    for (int type = 0; type < 3; type++) {
        for (int i = 0; i < 2 * STRIPS && type == 1; i++) /* scales that are numbers */
            memcpy(codes[i / 2] + i % 2 * (CODES + 128) + CODES, ones, sizeof ones);
        for (int rows = 1; rows <= ROWS; rows += ROWS - 1) {
            for (int which = 0; which < 2; which++)
                kernels[type][which](&(nmlp_gemm_microtile){.c = c[which],
                                                            .a = a,
                                                            .b = codes,
                                                            .a_step = (size_t)rows * 64,
                                                            .b_step = sizeof codes[0],
                                                            .k = K,
                                                            .rows = rows,
                                                            .strips = STRIPS,
                                                            .a_scales = a_scales,
                                                            .span = spans[type]});
            assert_memory_equal(c[0], c[1], (size_t)rows * 64 * sizeof(float));
            assert_true(c[0][0] != 0.0f || c[0][1] != 0.0f);
        }
    }
}
#endif

static bool has_what_comes_with_tiles(void) { return nmlp_cpu_get()->avx512_bf16 && nmlp_cpu_get()->avx512_vbmi; }

/* Strips of every code, against the plain C. */
static void vector_code_unpacks_to_the_bits_of_plain_code(void **state) {
    enum { K = 256, SPAN_BYTES = NMLP_SPAN * 16 + 256 };
    static _Alignas(64) char spans[K / NMLP_SPAN * SPAN_BYTES];
    _Alignas(64) uint16_t want[K * 16], got[K * 16];
    uint16_t scales[NMLP_SPAN / 32 * 16];
    int8_t zeros[NMLP_SPAN / 32 * 16], multipliers[NMLP_SPAN / 16 * 16];
    (void)state;
    if (!has_what_comes_with_tiles()) skip();
    for (int i = 0; i < NMLP_SPAN / 32 * 16; i++) scales[i] = nmlp_f32_to_f16((float)(i % 29 - 14) * 0.0137f);
    for (int i = 0; i < NMLP_SPAN / 32 * 16; i++) zeros[i] = (int8_t)(i * 5 % 16 - 8);
    for (int i = 0; i < NMLP_SPAN / 16 * 16; i++) multipliers[i] = (int8_t)(2 * (i * 7 % 16 - 7));
    for (int g = 0; g <= N_GROUPS; g++) {
        nmlp_gemm_quant_strip strip = {.spans = spans, .span = {.bytes = SPAN_BYTES}, .dtype = NMLP_DTYPE_Q4};
        bool multiplied = g == N_GROUPS;
        if (multiplied) strip.dtype = NMLP_DTYPE_Q4M;
        if (!multiplied && !groups[g]) strip.dtype = NMLP_DTYPE_Q8, strip.span.bytes = NMLP_SPAN * 16;
        for (int i = 0; i < (int)sizeof spans; i++) spans[i] = (char)((i * 37 + i / 256) & 255);
        for (int i = 0; i < K / NMLP_SPAN && strip.dtype != NMLP_DTYPE_Q8; i++) {
            char *numbers = spans + i * SPAN_BYTES + NMLP_SPAN * 8;
            memcpy(numbers, scales, sizeof scales);
            if (multiplied) memcpy(numbers, multipliers, sizeof multipliers);
            if (!multiplied && has_zeros[g]) memcpy(numbers + sizeof scales, zeros, sizeof zeros);
        }
        strip.span.scales_at = NMLP_SPAN * 8;
        strip.span.group_shift = multiplied ? 4 : groups[g] == 64 ? 6 : 5;
        if (multiplied || has_zeros[g]) strip.span.per_group_at = NMLP_SPAN * 8 + (multiplied ? 0 : sizeof scales);
        nmlp_gemm_quant_unpack_bf16(want, &strip, K);
        nmlp_gemm_quant_unpack_avx512bf16(got, &strip, K);
        for (int i = 0; i < K * 16; i++)
            if (got[i] != want[i]) fail_msg("kind %d, element %d: %04x, expected %04x", g, i, got[i], want[i]);
    }
}

static void check_not_finite(int64_t s, int64_t k) {
    enum { N = 20, K_MAX = 128, S_MAX = 20 };
    static float x[S_MAX * K_MAX], y[S_MAX * N];
    for (int g = 0; g < N_GROUPS; g++) {
        nmlp_view w = weight_of(g, N, k, 4);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            nmlp_linear *linear = create(set, &w);
            for (int j = 0; j < s * k; j++) x[j] = 1e-3f * (float)j;
            x[40] = NAN;
            run(linear, y, x, s, NULL);
            for (int j = 0; j < N; j++) assert_true(isnan(y[j]) && isfinite(y[N + j]));
            x[40] = INFINITY;
            run(linear, y, x, s, NULL);
            for (int j = 0; j < N; j++) assert_true(!isfinite(y[j]) && isfinite(y[N + j]));
            nmlp_linear_destroy(linear);
        }
        nmlp_test_weight_free(&w);
    }
}

static void inputs_that_are_not_finite_are_not_hidden(void **state) {
    (void)state;
    check_not_finite(2, 100);
    check_not_finite(20, 128);
}

/* A group below 0: with zero points. */
static nmlp_factors factors_of(int64_t n, int64_t k, int64_t rank, int group, uint64_t seed) {
    nmlp_factors f = {0};
    if (!rank) {
        f.w = group < 0 ? nmlp_test_with_zeros(n, k, -group, seed) : nmlp_test_quantised(n, k, group, seed);
    } else {
        f.u = nmlp_test_quantised(n, rank, 0, seed); /* u has the 8 bits where they are mixed */
        f.v =
            group < 0 ? nmlp_test_with_zeros(rank, k, -group, seed + 1) : nmlp_test_quantised(rank, k, group, seed + 1);
    }
    return f;
}

static void free_factors(nmlp_factors *f) {
    nmlp_test_weight_free(&f->w);
    nmlp_test_weight_free(&f->u);
    nmlp_test_weight_free(&f->v);
}

/* Fused, dense and low rank, types mixed within one MLP; chunks of I and parts of K at the larger sizes. */
static void mlp_matches_float64(void **state) {
    static const struct {
        int64_t h, i, gate, up, down;
        int group[3];
    } cases[] = {{70, 100, 0, 0, 0, {0, 0, 0}},         {70, 100, 0, 0, 0, {32, 64, 32}},
                 {96, 333, 40, 40, 50, {64, 64, 0}},    {45, 83, 19, 0, 23, {32, 0, 64}},
                 {200, 1500, 65, 33, 100, {0, 32, 32}}, {130, 2100, 0, 0, 0, {64, 0, 64}},
                 {128, 300, 0, 0, 0, {0, 0, 0}},        {190, 700, 50, 0, 64, {0, 0, 0}},
                 {70, 100, 0, 0, 0, {-32, 64, -64}},    {200, 1500, 65, 33, 100, {-64, -32, 32}}};
    static const int64_t rows[] = {1, 3, 6, 7, 16, 17, 40, 70, 200};
    enum { S = 200 };
    nmlp_pool *pool = nmlp_test_pool(2);
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int64_t h = cases[c].h, inner = cases[c].i;
        nmlp_mlp_desc desc = {.gate = factors_of(inner, h, cases[c].gate, cases[c].group[0], 10),
                              .up = factors_of(inner, h, cases[c].up, cases[c].group[1], 20),
                              .down = factors_of(h, inner, cases[c].down, cases[c].group[2], 30)};
        float *x = nmlp_test_floats(S * h, 40);
        float *int8 = rounded_rows(x, S, h);
        nmlp_truth exact = nmlp_truth_of(x, S, h), rounded = nmlp_truth_of(int8, S, h);
        for (int rounds = 0; rounds < 2; rounds++) {
            nmlp_truth truth = nmlp_truth_mlp(&exact, &desc, rounds);
            nmlp_truth truth_int8 = nmlp_truth_mlp(&rounded, &desc, rounds);
            for (int i = 0; i < NMLP_TEST_SETS; i++) {
                const nmlp_kernels *set = nmlp_test_set(i);
                nmlp_mlp *mlp;
                nmlp_err err;
                if (!set || nmlp_kernels_rounds_to_bf16(set) != (rounds == 1)) continue;
                nmlp_assert_ok(nmlp_mlp_create(&mlp, set, &desc, pool, &err), &err);
                for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
                    char what[96];
                    nmlp_guarded guards[2];
                    float *y = nmlp_guard_end(&guards[0], (size_t)(rows[r] * h) * sizeof *y);
                    void *workspace = nmlp_guard_end(&guards[1], nmlp_mlp_workspace_bytes(mlp, rows[r], 2));
                    bool q8 = cases[c].group[0] == 0 && cases[c].group[1] == 0;
                    nmlp_truth part = rounds_to_int8(set, rows[r], h, q8 ? 0 : 32) ? truth_int8 : truth;
                    part.rows = rows[r];
                    nmlp_mlp_run(mlp, y, x, rows[r], workspace, pool);
                    snprintf(what, sizeof what, "%s case %zu S=%lld", nmlp_kernels_name(set), c, (long long)rows[r]);
                    nmlp_assert_within(y, &part, what);
                    nmlp_guard_free(&guards[0]);
                    nmlp_guard_free(&guards[1]);
                }
                nmlp_mlp_destroy(mlp);
            }
            nmlp_truth_free(&truth);
            nmlp_truth_free(&truth_int8);
        }
        nmlp_truth_free(&exact);
        nmlp_truth_free(&rounded);
        nmlp_mem_free(x);
        nmlp_mem_free(int8);
        free_factors(&desc.gate);
        free_factors(&desc.up);
        free_factors(&desc.down);
    }
    nmlp_pool_destroy(pool);
}

static void bad_weights_are_refused(void **state) {
    nmlp_linear *linear;
    nmlp_err err;
    (void)state;
    const nmlp_kernels *set = nmlp_test_set(0);
    nmlp_view w = nmlp_test_quantised(20, 50, 32, 1);
    w.group = 48;
    nmlp_assert_fails(nmlp_linear_create(&linear, set, &w, NULL, NULL, &err), &err, NMLP_E_UNSUPPORTED, "groups of 48",
                      "32 or 64", NULL);
    w.group = 32;
    nmlp_view bare = w;
    bare.scales = NULL;
    nmlp_assert_fails(nmlp_linear_create(&linear, set, &bare, NULL, NULL, &err), &err, NMLP_E_ARG, "without scales",
                      NULL);
    ((uint16_t *)(uintptr_t)w.scales)[2 * 19 + 1] = 0x7c00; /* infinite */
    assert_int_equal(nmlp_view_first_nonfinite(&w), 19 * 50 + 32);
    linear = create(set, &w);
    assert_false(nmlp_linear_is_finite(linear));
    nmlp_linear_destroy(linear);
    nmlp_test_weight_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_is_to_the_nearest_code),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(linear_matches_float64),
        cmocka_unit_test(bits_depend_neither_on_rows_nor_on_threads),
        cmocka_unit_test(fewer_bits_have_the_bits_of_eight),
#if defined(__x86_64__)
        cmocka_unit_test(vnni_and_plain_avx512_have_the_same_bits),
        cmocka_unit_test(vector_code_unpacks_to_the_bits_of_plain_code),
#endif
        cmocka_unit_test(inputs_that_are_not_finite_are_not_hidden),
        cmocka_unit_test(mlp_matches_float64),
        cmocka_unit_test(bad_weights_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
