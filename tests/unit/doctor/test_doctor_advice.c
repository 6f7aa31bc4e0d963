/* Advice of machines that are not here: a survey made by hand, the lines that must and must not follow. */
#include <math.h>

#include "doctor/advice.h"
#include "doctor/selftest.h"
#include "kernels/kernels_internal.h"
#include "lib/testing.h"

static nmlp_survey good_machine(void) {
    return (nmlp_survey){.cpu = {.avx2_fma = true, .avx512 = true},
                         .n_threads = 8,
                         .n_cores = 8,
                         .huge_pages = NMLP_HUGE_PAGES_MADVISE,
                         .blas_core = "SkylakeX"};
}

static nmlp_advice advise(const nmlp_survey *survey) {
    nmlp_advice advice;
    nmlp_advise(&advice, survey, "Release");
    return advice;
}

/* Exactly one line, with this in it. */
static void assert_only(const nmlp_survey *survey, const char *part) {
    nmlp_advice advice = advise(survey);
    assert_int_equal(advice.n, 1);
    if (!strstr(advice.lines[0], part)) fail_msg("\"%s\" not in: %s", part, advice.lines[0]);
}

static void good_machine_needs_no_advice(void **state) {
    (void)state;
    nmlp_survey s = good_machine();
    assert_int_equal(advise(&s).n, 0);
    s.huge_pages = NMLP_HUGE_PAGES_ALWAYS;
    s.cpu_quota = 8;
    s.gpu_driver = s.gpu_built = s.gpu_usable = true;
    assert_int_equal(advise(&s).n, 0);
}

static void each_lack_has_its_line(void **state) {
    (void)state;
    nmlp_advice advice;
    nmlp_survey s = good_machine();
    nmlp_advise(&advice, &s, "Debug");
    assert_int_equal(advice.n, 1);
    assert_non_null(strstr(advice.lines[0], "CMAKE_BUILD_TYPE=Release"));
    s.cpu.avx2_fma = false;
    assert_only(&s, "AVX2");
    s = good_machine();
    snprintf(s.blas_core, sizeof s.blas_core, "Prescott");
    s.blas_better = "SkylakeX";
    assert_only(&s, "OPENBLAS_CORETYPE=SkylakeX");
    s = good_machine();
    s.huge_pages = NMLP_HUGE_PAGES_NEVER;
    assert_only(&s, "transparent_hugepage");
    s = good_machine();
    s.cpu_quota = 2.5;
    assert_only(&s, "use 2 threads");
    s.cpu_quota = 0.5;
    assert_only(&s, "use 1 threads");
    s = good_machine();
    s.gpu_driver = true;
    assert_only(&s, "nvcc");
    s.gpu_built = true;
    snprintf(s.gpu_reason, sizeof s.gpu_reason, "too old");
    assert_only(&s, "too old");
}

static void amx_is_followed_to_where_it_stops(void **state) {
    (void)state;
    nmlp_survey s = good_machine();
    s.cpu.amx.in_cpu = true;
    assert_only(&s, "Linux 5.16");
    s.cpu.amx.enabled = true;
    assert_only(&s, "arch_prctl");
    s.cpu.amx.permitted = true;
    assert_int_equal(advise(&s).n, 0); /* it is used without being asked for */
}

static void huge_page_setting_is_the_word_in_brackets(void **state) {
    (void)state;
    assert_int_equal(nmlp_huge_pages_parse("always [madvise] never"), NMLP_HUGE_PAGES_MADVISE);
    assert_int_equal(nmlp_huge_pages_parse("[always] madvise never"), NMLP_HUGE_PAGES_ALWAYS);
    assert_int_equal(nmlp_huge_pages_parse("always madvise [never]"), NMLP_HUGE_PAGES_NEVER);
    assert_int_equal(nmlp_huge_pages_parse("[alw"), NMLP_HUGE_PAGES_UNKNOWN);
    assert_int_equal(nmlp_huge_pages_parse(""), NMLP_HUGE_PAGES_UNKNOWN);
}

/* The portable set, but for one bit in the last element of each block. */
static void nearly_right_block(const nmlp_gemm_microtile *block) {
    nmlp_gemm_ref.microkernel[NMLP_DTYPE_F32](block);
    float *last = &block->c[block->rows * NMLP_STRIP * block->strips - 1];
    *last = nextafterf(*last, 1e30f);
}

static void selftest_finds_the_set_that_is_wrong(void **state) {
    (void)state;
    nmlp_err err;
    nmlp_cpu none = {0};
    const nmlp_kernels *ref;
    bool sound = false;
    nmlp_assert_ok(nmlp_kernels_select(&ref, &none, "ref", &err), &err);
    nmlp_assert_ok(nmlp_selftest(&sound, ref, &err), &err);
    assert_true(sound);
    nmlp_gemm gemm = nmlp_gemm_ref;
    nmlp_kernels broken = *ref;
    for (int i = 0; i < NMLP_DTYPES; i++)
        if (gemm.microkernel[i]) gemm.microkernel[i] = nearly_right_block;
    broken.wide = broken.narrow = &gemm;
    nmlp_assert_ok(nmlp_selftest(&sound, &broken, &err), &err);
    assert_false(sound);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_machine_needs_no_advice),
        cmocka_unit_test(each_lack_has_its_line),
        cmocka_unit_test(amx_is_followed_to_where_it_stops),
        cmocka_unit_test(huge_page_setting_is_the_word_in_brackets),
        cmocka_unit_test(selftest_finds_the_set_that_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
