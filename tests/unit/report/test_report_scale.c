/* Axes: ends, ticks and places against arithmetic on paper. */
#include <math.h>

#include "lib/testing.h"
#include "report/scale.h"

static void assert_near(double got, double want) { assert_true(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))); }

static void assert_ticks(const nmlp_scale *s, const double *want, int n) {
    double ticks[NMLP_SCALE_TICKS_MAX];
    assert_int_equal(nmlp_scale_ticks(s, ticks), n);
    for (int i = 0; i < n; i++) assert_near(ticks[i], want[i]);
}

static void linear_ends_are_round(void **state) {
    const double values[] = {3.2, NAN, 47, 12};
    (void)state;
    nmlp_scale s = nmlp_scale_around(NMLP_SCALE_LINEAR, values, 4, 5);
    assert_near(s.low, 0);
    assert_near(s.high, 50);
    assert_ticks(&s, (const double[]){0, 10, 20, 30, 40, 50}, 6);
    assert_near(nmlp_scale_place(&s, 12.5), 0.25);
}

static void negative_zero_is_no_tick(void **state) {
    const double values[] = {-0.3, 0.3};
    double ticks[NMLP_SCALE_TICKS_MAX];
    (void)state;
    nmlp_scale s = nmlp_scale_around(NMLP_SCALE_LINEAR, values, 2, 3);
    int n = nmlp_scale_ticks(&s, ticks);
    for (int i = 0; i < n; i++) assert_true(ticks[i] != 0 || !signbit(ticks[i]));
}

static void decades_end_at_powers_of_ten(void **state) {
    const double values[] = {2.6, 772, 0, -5};
    (void)state;
    nmlp_scale s = nmlp_scale_around(NMLP_SCALE_DECADES, values, 4, 0);
    assert_near(s.low, 1);
    assert_near(s.high, 1000);
    assert_ticks(&s, (const double[]){1, 10, 100, 1000}, 4);
    assert_near(nmlp_scale_place(&s, 10), 1.0 / 3);
}

static void logarithmic_ends_are_one_two_five(void **state) {
    const double values[] = {0.034, 1.3};
    (void)state;
    nmlp_scale s = nmlp_scale_around(NMLP_SCALE_LOG, values, 2, 0);
    assert_near(s.low, 0.02);
    assert_near(s.high, 2);
    assert_ticks(&s, (const double[]){0.02, 0.05, 0.1, 0.2, 0.5, 1, 2}, 7);
    assert_near(nmlp_scale_place(&s, 0.2), 0.5);
}

/* Values that are round already are the ends, whatever rounding did to them. */
static void round_ends_stay(void **state) {
    (void)state;
    for (int e = -12; e <= 12; e++) {
        const double values[] = {2 * pow(10, e), 5 * pow(10, e + 2)};
        nmlp_scale s = nmlp_scale_around(NMLP_SCALE_LOG, values, 2, 0);
        assert_near(s.low / values[0], 1);
        assert_near(s.high / values[1], 1);
    }
}

static void one_value_and_none_have_a_range(void **state) {
    const double one[] = {5}, nothing[] = {NAN, INFINITY};
    (void)state;
    for (int kind = NMLP_SCALE_LINEAR; kind <= NMLP_SCALE_LOG; kind++) {
        nmlp_scale s = nmlp_scale_around((nmlp_scale_kind)kind, one, 1, 5);
        assert_true(s.low <= 5 && s.high >= 5 && s.low < s.high);
        s = nmlp_scale_around((nmlp_scale_kind)kind, nothing, 2, 5);
        assert_true(isfinite(s.low) && isfinite(s.high) && s.low < s.high);
        s = nmlp_scale_around((nmlp_scale_kind)kind, NULL, 0, 5);
        assert_true(s.low < s.high);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_ends_are_round),
        cmocka_unit_test(negative_zero_is_no_tick),
        cmocka_unit_test(decades_end_at_powers_of_ten),
        cmocka_unit_test(logarithmic_ends_are_one_two_five),
        cmocka_unit_test(round_ends_stay),
        cmocka_unit_test(one_value_and_none_have_a_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
