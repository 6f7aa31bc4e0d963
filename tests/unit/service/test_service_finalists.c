/* The last comparison of an optimization: on times made by hand, and on random ones with a lead that is known. */
#include <math.h>

#include "lib/testing.h"
#include "service/finalists.h"

static nmlp_finalists measured(int n) {
    nmlp_finalists f = {.n = n, .n_repeats = NMLP_FINAL_REPEATS, .least = 0.02};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < NMLP_FINAL_REPEATS; k++) f.list[i].ratio[k] = 1;
    return f;
}

static void set(nmlp_finalist *f, double loss, const double ratio[NMLP_FINAL_REPEATS]) {
    f->loss = loss;
    memcpy(f->ratio, ratio, sizeof f->ratio);
}

static void medians_and_ranges(void **state) {
    (void)state;
    double low, high;
    nmlp_finalists f = measured(2);
    set(&f.list[1], 0.001, (const double[]){0.9, 1.4, 0.7, 0.8, 0.95, 0.85, 0.6});
    assert_true(nmlp_finalist_ratio(&f, 1) == 0.85 && nmlp_finalist_ratio(&f, 0) == 1);
    nmlp_finalist_range(&f, 1, &low, &high);
    assert_true(low == 0.6 && high == 1.4);
}

static void a_lead_is_shown_by_all_repeats_but_one(void **state) {
    (void)state;
    nmlp_finalists f = measured(2);
    set(&f.list[1], 0, (const double[]){0.9, 0.9, 0.9, 1.5, 0.9, 0.9, 0.9});
    assert_true(nmlp_finalist_leads(&f, 1, 0));
    assert_false(nmlp_finalist_leads(&f, 0, 1));
    f.list[1].ratio[0] = 1.01; /* a second one */
    assert_false(nmlp_finalist_leads(&f, 1, 0));
    set(&f.list[1], 0, (const double[]){0.99, 0.99, 0.99, 0.99, 0.99, 0.99, 0.99});
    assert_false(nmlp_finalist_leads(&f, 1, 0)); /* always, but by too little */
    f.n_repeats = 1;                             /* simulated */
    f.least = 0.001;
    assert_true(nmlp_finalist_leads(&f, 1, 0));
    f.list[1].ratio[0] = 0.9995;
    assert_false(nmlp_finalist_leads(&f, 1, 0));
}

static void the_dense_model_stays_where_the_lead_is_in_doubt(void **state) {
    (void)state;
    int fastest;
    nmlp_finalists f = measured(2);
    /* q8 with 32 sequences on two busy cores: faster in the median, slower in three of seven. */
    set(&f.list[1], 0.0005, (const double[]){0.92, 1.04, 0.96, 1.08, 0.95, 0.93, 1.02});
    assert_int_equal(nmlp_finalists_choose(&f, &fastest), 0);
    assert_int_equal(fastest, 1);
    f.n = 1;
    assert_int_equal(nmlp_finalists_choose(&f, &fastest), 0);
    assert_int_equal(fastest, 0);
}

static void of_those_not_led_the_one_that_loses_least(void **state) {
    (void)state;
    int fastest;
    nmlp_finalists f = measured(4);
    set(&f.list[1], 0.0005, (const double[]){0.85, 0.80, 0.83, 0.84, 0.81, 0.85, 0.82}); /* q8 */
    set(&f.list[2], 0.0001, (const double[]){0.98, 1.02, 0.99, 1.01, 1.00, 0.97, 1.03}); /* a rank: does not lead */
    set(&f.list[3], 0.0080, (const double[]){0.80, 0.84, 0.78, 0.85, 0.79, 0.86, 0.80}); /* a mix: 1.25x, 1.20x */
    assert_int_equal(nmlp_finalists_choose(&f, &fastest), 1);
    assert_int_equal(fastest, 3);
    for (int k = 0; k < NMLP_FINAL_REPEATS; k++) f.list[3].ratio[k] = 0.9 * f.list[1].ratio[k];
    assert_int_equal(nmlp_finalists_choose(&f, &fastest), 3);
}

static double uniform(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) / 9007199254740992.0;
}

/* Forms as fast as the dense model are rarely taken for faster, whatever the noise; a lead beyond the noise always is,
 * and then nothing slower than the best single form is written. */
static void random_times(void **state) {
    (void)state;
    enum { RUNS = 4000 };
    uint64_t seed = 7;
    int wrong = 0, fastest;
    for (int run = 0; run < RUNS; run++) {
        nmlp_finalists f = measured(2);
        double noise = 0.4 * uniform(&seed);
        for (int k = 0; k < NMLP_FINAL_REPEATS; k++) f.list[1].ratio[k] = 1 + noise * (uniform(&seed) - 0.5);
        wrong += nmlp_finalists_choose(&f, &fastest) != 0;
    }
    assert_true(wrong < RUNS * 0.0625 * 1.1); /* eight of 128 rows of signs have at most one that is behind */
    for (int run = 0; run < RUNS; run++) {
        nmlp_finalists f = measured(3);
        double true_ratio[] = {1, 0.6 + 0.3 * uniform(&seed), 0.6 + 0.3 * uniform(&seed)};
        for (int i = 1; i < 3; i++) {
            f.list[i].loss = 0.01 * uniform(&seed);
            for (int k = 0; k < NMLP_FINAL_REPEATS; k++)
                f.list[i].ratio[k] = true_ratio[i] * (1 + 0.02 * (uniform(&seed) - 0.5));
        }
        int chosen = nmlp_finalists_choose(&f, &fastest);
        assert_true(chosen > 0);
        assert_true(true_ratio[chosen] <= 1.05 * fmin(true_ratio[1], true_ratio[2]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians_and_ranges),
        cmocka_unit_test(a_lead_is_shown_by_all_repeats_but_one),
        cmocka_unit_test(the_dense_model_stays_where_the_lead_is_in_doubt),
        cmocka_unit_test(of_those_not_led_the_one_that_loses_least),
        cmocka_unit_test(random_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
