/* Conversions and difference reports against independent arithmetic. */
#include <math.h>

#include "base/rng.h"
#include "lib/testing.h"
#include "tensor/diff.h"
#include "tensor/view.h"

/* Value of a 16-bit float from its definition. */
static double by_definition(uint16_t bits, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

static void check_all_patterns(nmlp_dtype dtype, int exponent_bits, int mantissa_bits) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t half = (uint16_t)bits;
        uint16_t back;
        float value;
        double want = by_definition(half, exponent_bits, mantissa_bits);
        nmlp_to_f32(&value, &half, dtype, 1);
        nmlp_from_f32(&back, dtype, &value, 1);
        if (isnan(want)) {
            float again;
            nmlp_to_f32(&again, &back, dtype, 1);
            assert_true(isnan(value) && isnan(again));
        } else {
            assert_true((double)value == want);
            assert_int_equal(back, half);
        }
    }
}

static void every_bit_pattern_converts_both_ways(void **state) {
    (void)state;
    check_all_patterns(NMLP_DTYPE_BF16, 8, 7);
    check_all_patterns(NMLP_DTYPE_F16, 5, 10);
}

/* Round to nearest, ties to even, by trying the neighbours. */
static void check_rounding(nmlp_dtype dtype, int exponent_bits, int mantissa_bits, float value) {
    uint16_t got;
    nmlp_from_f32(&got, dtype, &value, 1);
    double error = fabs(by_definition(got, exponent_bits, mantissa_bits) - (double)value);
    for (int step = -1; step <= 1; step += 2) {
        uint16_t other = (uint16_t)(got + step);
        double other_value = by_definition(other, exponent_bits, mantissa_bits);
        if (!isfinite(other_value) || (other & 0x8000) != (got & 0x8000)) continue;
        double other_error = fabs(other_value - (double)value);
        assert_true(error < other_error || (error == other_error && !(got & 1)));
    }
}

static void rounding_is_to_nearest_even(void **state) {
    nmlp_rng rng;
    (void)state;
    nmlp_rng_seed(&rng, 3);
    for (int i = 0; i < 200000; i++) {
        float value = (float)(nmlp_rng_normal(&rng) * pow(2, (double)nmlp_rng_below(&rng, 30) - 20));
        if (i % 4 == 0) value = (float)(nmlp_rng_below(&rng, 4096)) * 0x1p-3f + 0x1p-4f; /* many exact ties */
        check_rounding(NMLP_DTYPE_BF16, 8, 7, value);
        if (fabsf(value) < 65000) check_rounding(NMLP_DTYPE_F16, 5, 10, value);
    }
    float big = 65520; /* rounds past the largest f16 */
    uint16_t half;
    nmlp_from_f32(&half, NMLP_DTYPE_F16, &big, 1);
    assert_int_equal(half, 0x7c00);
}

/* The value that the format's description gives a code: NaN for all ones. */
static double fp8_value(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return (code & 127) == 127 ? (double)NAN : code & 128 ? -size : size;
}

static void fp8_codes_mean_what_the_format_says(void **state) {
    (void)state;
    assert_true(fp8_value(0x7e) == 448 && fp8_value(0x77) == 240 && fp8_value(1) == ldexp(1, -9));
    for (int code = 0; code < 256; code++) {
        float value = nmlp_fp8_to_f32((uint8_t)code);
        if ((code & 127) == 127) {
            assert_true(isnan(value) && nmlp_fp8_is_nan((uint8_t)code));
            continue;
        }
        assert_true((double)value == fp8_value(code) && !nmlp_fp8_is_nan((uint8_t)code));
        assert_true(nmlp_bf16_to_f32(nmlp_f32_to_bf16(value)) == value);
        if ((code & 127) > 0x77) continue; /* above 240: read, never made */
        assert_true(nmlp_fp8_round(value) == value);
        assert_int_equal(nmlp_fp8_from_rounded(value), code);
    }
}

/* Against a search through all codes; half-way cases go to the even one, and beyond 240 lies 240. */
static void fp8_rounding_is_to_the_nearest_even(void **state) {
    uint64_t seed = 1;
    (void)state;
    for (int trial = 0; trial < 20000; trial++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        float value = ldexpf((float)(int)(seed >> 40) - 8388608.0f, (int)(seed >> 20 & 31) - 36);
        if (trial < 2 * 0x77) /* half way between neighbours */
            value = (float)((fp8_value(trial / 2) + fp8_value(trial / 2 + 1)) / (trial & 1 ? 2 : -2));
        int best = 0;
        for (int code = 1; code <= 0x77; code++) {
            double off = fabs(fabs((double)value) - fp8_value(code)),
                   least = fabs(fabs((double)value) - fp8_value(best));
            if (off < least || (off == least && (code & 1) == 0)) best = code;
        }
        uint8_t got = nmlp_fp8_from_rounded(nmlp_fp8_round(value));
        assert_int_equal(got & 127, best);
        if (best) assert_int_equal(got >> 7, value < 0);
    }
    assert_true(nmlp_fp8_round(1e30f) == 240.0f && nmlp_fp8_round(-1e30f) == -240.0f && nmlp_fp8_round(0.0f) == 0.0f);
    assert_true(isnan(nmlp_fp8_round(NAN)));
}

static void first_nonfinite_is_found(void **state) {
    static const nmlp_dtype dtypes[] = {NMLP_DTYPE_F32, NMLP_DTYPE_BF16, NMLP_DTYPE_F16};
    (void)state;
    for (size_t d = 0; d < 3; d++) {
        float values[6] = {0, 1, -65504, 1e-5f, 2, 3};
        unsigned char bytes[24];
        nmlp_view view = nmlp_view_2d(bytes, dtypes[d], 2, 3);
        nmlp_from_f32(bytes, dtypes[d], values, 6);
        assert_int_equal(nmlp_view_first_nonfinite(&view), -1);
        values[4] = -INFINITY;
        values[5] = NAN;
        nmlp_from_f32(bytes, dtypes[d], values, 6);
        assert_int_equal(nmlp_view_first_nonfinite(&view), 4);
    }
}

/* The scan goes in blocks; a value at a border belongs to one of them. */
static void nonfinite_is_found_anywhere(void **state) {
    static const nmlp_dtype dtypes[] = {NMLP_DTYPE_F32, NMLP_DTYPE_BF16, NMLP_DTYPE_F16};
    enum { N = 1301 };
    static const int64_t places[] = {0, 511, 512, 513, 1023, 1024, 1300};
    (void)state;
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            static float values[N];
            static unsigned char bytes[N * sizeof(float)];
            nmlp_view view = nmlp_view_2d(bytes, dtypes[d], 1, N);
            for (int j = 0; j < N; j++) values[j] = (float)j;
            values[places[i]] = INFINITY;
            nmlp_from_f32(bytes, dtypes[d], values, N);
            assert_int_equal(nmlp_view_first_nonfinite(&view), places[i]);
        }
}

static void difference_report_finds_the_worst(void **state) {
    const float want[4] = {1, -4, 2, 0};
    float got[4] = {1, -4, 2.5f, 0};
    (void)state;
    nmlp_diff diff = nmlp_diff_f32(got, want, 4);
    assert_int_equal(diff.worst, 2);
    assert_true(diff.max_abs == 0.5 && diff.rel_to_max == 0.125 && diff.nmse == 0.25 / 21);
    got[0] = NAN;
    diff = nmlp_diff_f32(got, want, 4);
    assert_true(isinf(diff.max_abs) && diff.worst == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_pattern_converts_both_ways),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(fp8_codes_mean_what_the_format_says),
        cmocka_unit_test(fp8_rounding_is_to_the_nearest_even),
        cmocka_unit_test(first_nonfinite_is_found),
        cmocka_unit_test(nonfinite_is_found_anywhere),
        cmocka_unit_test(difference_report_finds_the_worst),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
