/* Numbers of a machine from measured times: known truth, noise, wrong measurements, and what cannot be known. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "lib/neuron_testing.h"
#include "trainium/fit/fit.h"
#include "trainium/sim/time.h"

enum { N = 30 };

typedef struct bench_set {
    nmlp_program *programs[N];
    nmlp_fit_measurement list[N];
} bench_set;

/* Kernels that lean on different parts of the machine: long and short rows, many and few products. */
static void build(bench_set *set, const nmlp_machine *m) {
    static const struct {
        const char *kernel, *tiling;
        int64_t shape[4];
    } kinds[] = {
        {"xw-tiled", "", {512, 1024, 0, 1024}},          {"xw-opt", "m=8,n=2,k=8", {2048, 2048, 0, 2048}},
        {"xtuv-fused", "", {1024, 2048, 512, 4096}},     {"xw-hoist", "", {256, 2048, 0, 1024}},
        {"xw-opt", "m=1,n=8,k=4", {128, 1024, 0, 8192}}, {"xw-tiled", "", {128, 256, 0, 512}},
    };
    for (int i = 0; i < N; i++) {
        int64_t shape[4];
        memcpy(shape, kinds[i % 6].shape, sizeof shape);
        shape[0] *= 1 + i / 6 % 3; /* more rows, then wider */
        shape[1] *= 1 + i / 18;
        set->programs[i] = nmlp_test_kernel(kinds[i % 6].kernel, m, NMLP_NC_BF16, shape, kinds[i % 6].tiling);
        set->list[i] = (nmlp_fit_measurement){.program = set->programs[i], .with_launch = i % 5 != 0};
    }
}

static void measure(bench_set *set, const nmlp_machine *truth, double noise, uint64_t seed) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, seed);
    for (int i = 0; i < N; i++) {
        nmlp_time_report t;
        nmlp_err err = {0};
        nmlp_assert_ok(nmlp_time_run(&t, set->programs[i], truth, NULL, &err), &err);
        double us = t.latency_us - (set->list[i].with_launch ? 0 : truth->launch_us);
        set->list[i].measured_us = us * exp(noise * nmlp_rng_normal(&rng));
    }
}

static void drop(bench_set *set) {
    for (int i = 0; i < N; i++) nmlp_program_destroy(set->programs[i]);
}

static nmlp_machine changed(const nmlp_machine *m) {
    nmlp_machine truth = *m;
    truth.tensor_sustained = 0.76;
    truth.dma_bytes_per_ns = 14.1;
    truth.dma_small_bytes_per_ns = 5.2;
    truth.launch_us = 13.5;
    return truth;
}

static void known_numbers_come_back_within_two_percent(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn1"), truth = changed(&m), fitted = m;
    static const nmlp_machine_key keys[] = {NMLP_MACHINE_KEY_tensor_sustained, NMLP_MACHINE_KEY_dma_bytes_per_ns,
                                            NMLP_MACHINE_KEY_dma_small_bytes_per_ns, NMLP_MACHINE_KEY_launch_us};
    bench_set set;
    nmlp_fit_result r;
    nmlp_err err = {0};
    build(&set, &m);
    measure(&set, &truth, 0.01, 11);
    set.list[7].measured_us *= 1.7; /* two wrong ones */
    set.list[20].measured_us *= 0.5;
    nmlp_assert_ok(nmlp_fit_machine(&r, &fitted, set.list, N, keys, 4, true, "test", NULL, &err), &err);
    for (int k = 0; k < 4; k++) {
        double want = nmlp_machine_value(&truth, keys[k]), got = nmlp_machine_value(&fitted, keys[k]);
        printf("%s: %g of %g, +- %.2f %%\n", nmlp_machine_key_name(keys[k]), got, want, 100 * r.keys[k].uncertainty);
        assert_true(fabs(got / want - 1) < 0.02);
        assert_int_equal(fitted.origin[keys[k]].tag, NMLP_ORIGIN_MEASURED);
    }
    printf("error %.1f %% before, %.2f %% after\n", 100 * r.before.median, 100 * r.after.median);
    assert_true(r.before.median > 0.1 && r.after.median < 0.012);
    assert_true(r.n_outliers >= 2 && r.n_outliers <= 5);
    assert_true(fitted.dma_engines == m.dma_engines && fitted.vector_clock_ghz == m.vector_clock_ghz);
    nmlp_mem_free(r.simulated_us);
    drop(&set);
}

/* Other noise, other wrong measurements: within three times the uncertainty that is stated, and within 2 % as long as
 * the noise is 1 %. */
static void other_seeds_and_noise_come_out_as_near(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn1"), truth = changed(&m);
    static const nmlp_machine_key keys[] = {NMLP_MACHINE_KEY_tensor_sustained, NMLP_MACHINE_KEY_dma_bytes_per_ns,
                                            NMLP_MACHINE_KEY_dma_small_bytes_per_ns, NMLP_MACHINE_KEY_launch_us};
    static const struct {
        double noise, allowed;
        uint64_t seed;
        int wrong;
    } cases[] = {{0.01, 0.02, 2, 2}, {0.01, 0.02, 3, 3}, {0.02, 0.06, 4, 2}};
    bench_set set;
    build(&set, &m);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        nmlp_machine fitted = m;
        nmlp_fit_result r;
        nmlp_err err = {0};
        double worst = 0;
        measure(&set, &truth, cases[c].noise, cases[c].seed);
        for (int w = 0; w < cases[c].wrong; w++) /* far off, in either direction */
            set.list[(13 * w + 7 * (int)cases[c].seed) % N].measured_us *= w % 2 ? 0.5 : 1.8;
        nmlp_assert_ok(nmlp_fit_machine(&r, &fitted, set.list, N, keys, 4, true, "test", NULL, &err), &err);
        for (int k = 0; k < 4; k++) {
            double off = fabs(nmlp_machine_value(&fitted, keys[k]) / nmlp_machine_value(&truth, keys[k]) - 1);
            assert_true(off <= 3 * r.keys[k].uncertainty);
            worst = fmax(worst, off);
        }
        printf("noise %g %%, seed %d, %d wrong: worst number %.2f %% off\n", 100 * cases[c].noise, (int)cases[c].seed,
               cases[c].wrong, 100 * worst);
        nmlp_mem_free(r.simulated_us);
        assert_true(worst <= cases[c].allowed);
    }
    drop(&set);
}

/* Seeds at which slopes alone stated too little (21 % off where they said 7, 5.2 where they said 1.7): at the true
 * value of one number the times have a kink. What is not certain enough may be left as it was. */
static void uncertainty_holds_at_three_percent_noise(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn1"), truth = changed(&m);
    static const nmlp_machine_key keys[] = {NMLP_MACHINE_KEY_tensor_sustained, NMLP_MACHINE_KEY_dma_bytes_per_ns,
                                            NMLP_MACHINE_KEY_dma_small_bytes_per_ns, NMLP_MACHINE_KEY_launch_us};
    bench_set set;
    build(&set, &m);
    for (uint64_t seed = 12; seed <= 13; seed++) {
        nmlp_machine fitted = m;
        nmlp_fit_result r;
        nmlp_err err = {0};
        int n_fitted = 0;
        measure(&set, &truth, 0.03, seed);
        for (int w = 0; w < 2; w++) set.list[(13 * w + 7 * (int)seed) % N].measured_us *= w % 2 ? 0.5 : 1.8;
        nmlp_assert_ok(nmlp_fit_machine(&r, &fitted, set.list, N, keys, 4, false, "test", NULL, &err), &err);
        for (int k = 0; k < 4; k++) {
            double off = fabs(nmlp_machine_value(&fitted, keys[k]) / nmlp_machine_value(&truth, keys[k]) - 1);
            if (!r.keys[k].fitted) continue;
            n_fitted++;
            assert_true(off <= 3 * r.keys[k].uncertainty);
        }
        assert_true(n_fitted >= 3);
        nmlp_mem_free(r.simulated_us);
    }
    drop(&set);
}

static void what_the_times_do_not_show_is_refused_or_left(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn1"), truth = changed(&m), fitted = m;
    static const nmlp_machine_key keys[] = {NMLP_MACHINE_KEY_dma_bytes_per_ns, NMLP_MACHINE_KEY_scalar_table_load_ns};
    bench_set set;
    nmlp_fit_result r;
    nmlp_err err = {0};
    build(&set, &m); /* none of these kernels has an activation */
    measure(&set, &truth, 0.01, 11);
    assert_int_equal(nmlp_fit_machine(&r, &fitted, set.list, N, keys, 2, true, "test", NULL, &err), NMLP_E_ARG);
    assert_non_null(strstr(err.message, "scalar_table_load_ns"));
    assert_true(fitted.dma_bytes_per_ns == m.dma_bytes_per_ns);
    nmlp_assert_ok(nmlp_fit_machine(&r, &fitted, set.list, N, keys, 2, false, "test", NULL, &err), &err);
    assert_true(r.keys[0].fitted && !r.keys[1].fitted);
    assert_true(fitted.scalar_table_load_ns == m.scalar_table_load_ns);
    nmlp_mem_free(r.simulated_us);
    assert_int_equal(nmlp_fit_machine(&r, &fitted, set.list, N, keys + 1, 1, false, "test", NULL, &err), NMLP_E_ARG);
    assert_int_equal(nmlp_fit_machine(&r, &fitted, set.list, 0, keys, 1, false, "test", NULL, &err), NMLP_E_ARG);
    drop(&set);
}

static void a_printed_machine_reads_the_same(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn3"), back;
    nmlp_err err = {0};
    nmlp_str text;
    nmlp_str_init(&text);
    m.dma_row_ns = 1.0 / 3;
    m.origin[NMLP_MACHINE_KEY_dma_row_ns].tag = NMLP_ORIGIN_MEASURED;
    nmlp_machine_print(&m, &text);
    nmlp_assert_ok(nmlp_machine_parse(&back, "text", nmlp_str_text(&text), text.len, &err), &err);
    for (int k = 0; k < NMLP_MACHINE_N_KEYS; k++) {
        double a = nmlp_machine_value(&m, (nmlp_machine_key)k), b = nmlp_machine_value(&back, (nmlp_machine_key)k);
        assert_true(fabs(a - b) <= 1e-9 * fabs(a));
        assert_string_equal(m.origin[k].source, back.origin[k].source);
        assert_int_equal(m.origin[k].tag, back.origin[k].tag);
    }
    nmlp_str_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_numbers_come_back_within_two_percent),
        cmocka_unit_test(other_seeds_and_noise_come_out_as_near),
        cmocka_unit_test(uncertainty_holds_at_three_percent_noise),
        cmocka_unit_test(what_the_times_do_not_show_is_refused_or_left),
        cmocka_unit_test(a_printed_machine_reads_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
