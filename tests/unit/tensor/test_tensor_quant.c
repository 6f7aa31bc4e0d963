/* Rounding of one row. */
#include <math.h>

#include "base/mem.h"
#include "lib/guard.h"
#include "lib/testing.h"
#include "lib/truth.h"
#include "tensor/quant.h"

/* What is no number has some code, and what lies behind the row is not touched: 85 codes of 6 bits end in its last
 * byte. */
static void rows_with_nan_stay_inside(void **state) {
    enum { K = 85 };
    static const nmlp_dtype types[] = {NMLP_DTYPE_Q8, NMLP_DTYPE_Q6};
    (void)state;
    for (int t = 0; t < 2; t++) {
        nmlp_guarded guarded;
        float w[K], back[K], scale;
        nmlp_view view = nmlp_view_2d(NULL, types[t], 1, K);
        view.data = nmlp_guard_end(&guarded, nmlp_view_bytes(&view));
        view.scales = &scale;
        for (int i = 0; i < K; i++) w[i] = (float)(i % 11 - 5);
        w[3] = w[K - 1] = NAN;
        nmlp_quant_row_from_f32(&view, 0, w);
        nmlp_quant_row_to_f32(back, &view, 0);
        for (int i = 0; i < K; i++) {
            assert_true(isfinite(back[i]));
            if (isfinite(w[i])) assert_true(fabsf(back[i] - w[i]) <= 1.001f * fabsf(scale));
        }
        nmlp_guard_free(&guarded);
    }
}

static double error_with(const float *w, int n, double scale, int half) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double code = fmin(fmax(nearbyint((double)w[i] / scale), -half), half - 1), e = (double)w[i] - code * scale;
        sum += e * e;
    }
    return sum;
}

/* Multipliers against every other, for groups of unequal size and either sign; a row of zeros, and one with NaN, whose
 * codes stay in their memory. */
static void multipliers_are_near_the_best(void **state) {
    enum { K = 128, GROUPS = K / 16 };
    static const nmlp_dtype types[] = {NMLP_DTYPE_Q6M, NMLP_DTYPE_Q5M, NMLP_DTYPE_Q4M};
    static const int halves[] = {32, 16, 8}, least_m[] = {-3, -7, -7}, most_m[] = {4, 8, 8}, steps[] = {1, 1, 2};
    (void)state;
    for (int t = 0; t < 3; t++) {
        nmlp_guarded guarded;
        int8_t multipliers[GROUPS];
        float w[K], back[K], scale = 0, *random = nmlp_test_floats(40 * K, 3);
        nmlp_view view = nmlp_quant_view_multiplied(NULL, types[t], &scale, multipliers, 1, K);
        double ours = 0, best = 0;
        view.data = nmlp_guard_end(&guarded, nmlp_view_bytes(&view));
        for (int trial = 0; trial < 40; trial++) {
            for (int i = 0; i < K; i++) w[i] = random[trial * K + i] * (1.0f + 0.2f * (float)(i / 16));
            nmlp_quant_row_from_f32(&view, 0, w);
            nmlp_quant_row_to_f32(back, &view, 0);
            for (int g = 0; g < GROUPS; g++) {
                double least = INFINITY;
                assert_true(multipliers[g] >= least_m[t] && multipliers[g] <= most_m[t] && multipliers[g] != 0);
                for (int m = least_m[t]; m <= most_m[t]; m++)
                    if (m != 0)
                        least = fmin(least, error_with(w + 16 * g, 16, (double)scale * m * steps[t], halves[t]));
                for (int i = 16 * g; i < 16 * g + 16; i++)
                    ours += ((double)w[i] - (double)back[i]) * ((double)w[i] - (double)back[i]);
                best += least;
            }
        }
        assert_true(ours < 1.02 * best);
        for (int i = 0; i < K; i++) w[i] = 0;
        nmlp_quant_row_from_f32(&view, 0, w);
        nmlp_quant_row_to_f32(back, &view, 0);
        for (int i = 0; i < K; i++) assert_true(back[i] == 0);
        w[3] = w[K - 1] = NAN;
        w[20] = 1;
        nmlp_quant_row_from_f32(&view, 0, w);
        nmlp_quant_row_to_f32(back, &view, 0);
        for (int i = 0; i < K; i++) assert_true(isfinite(back[i]));
        assert_true(back[20] == 1);
        nmlp_mem_free(random);
        nmlp_guard_free(&guarded);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_with_nan_stay_inside),
        cmocka_unit_test(multipliers_are_near_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
