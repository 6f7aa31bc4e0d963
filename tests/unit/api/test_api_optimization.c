/* nmlp_optimize_model: wrong values are named by their field, a cancelled call writes nothing, results say what was
 * written. */
#include <math.h>
#include <unistd.h>

#include "lib/testing.h"
#include "neuronmlp/neuronmlp.h"

static const char tiny[] = NMLP_TEST_ROOT "/models/tiny";

static nmlp_optimize_options quick(void) {
    nmlp_optimize_options o;
    nmlp_optimize_options_init(&o, sizeof o);
    o.target = "trn1"; /* simulated: no clock */
    o.workload = "prompt";
    o.max_loss = 1e-6; /* no form but the dense one keeps this */
    o.calibration_tokens = 64;
    o.heldout_tokens = 64;
    o.verify_tokens = 64;
    o.context = 32;
    o.n_threads = 1;
    return o;
}

static void wrong_values_are_named(void **state) {
    (void)state;
    nmlp_err err;
    char dir[256], out[300];
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/out", dir);
#define REFUSED(change, name)                                                                                          \
    do {                                                                                                               \
        nmlp_optimize_options o = quick();                                                                             \
        change;                                                                                                        \
        assert_int_not_equal(nmlp_optimize_model(tiny, out, &o, NULL, &err), NMLP_OK);                                 \
        if (strcmp(err.field, name) != 0) fail_msg("field \"%s\", not \"%s\": %s", err.field, name, err.message);      \
        if (strstr(err.message, "--") || strstr(err.hint, "--")) fail_msg("%s / %s", err.message, err.hint);           \
        assert_int_not_equal(access(out, F_OK), 0);                                                                    \
    } while (0)
    REFUSED(o.max_loss = 0, "max_loss");
    REFUSED(o.max_loss = 1, "max_loss");
    REFUSED(o.max_loss = (double)NAN, "max_loss");
    REFUSED(o.minutes = -1, "minutes");
    REFUSED(o.workload = "batch=65", "workload");
    REFUSED(o.workload = "batch=", "workload");
    REFUSED(o.tile = -1, "tile");
    REFUSED(o.verify_tokens = -1, "verify_tokens");
    REFUSED(o.n_threads = -1, "n_threads");
    REFUSED(o.heldout_tokens = 0, "heldout_tokens");
#undef REFUSED
    nmlp_optimize_options o = quick();
    o.calibration = "/no/such.txt";
    nmlp_assert_fails(nmlp_optimize_model(tiny, out, &o, NULL, &err), &err, NMLP_E_IO, "/no/such.txt", NULL);
    assert_int_equal(nmlp_optimize_model(NULL, out, NULL, NULL, NULL), NMLP_E_ARG);
    nmlp_test_rmdir(dir);
}

static int stop_soon(void *ctx, const char *stage, double done, double total, const char *unit) {
    int *calls = ctx;
    assert_true(stage[0] && unit[0] && done >= 0 && done <= total);
    return ++*calls == 12;
}

static void a_cancelled_call_writes_nothing_and_goes_on(void **state) {
    (void)state;
    nmlp_err err;
    char dir[256], out[300], work[320];
    int calls = 0;
    nmlp_optimize_result r;
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/out", dir);
    snprintf(work, sizeof work, "%s.work.partial", out);
    nmlp_optimize_options o = quick();
    o.on_progress = stop_soon;
    o.progress_ctx = &calls;
    assert_int_equal(nmlp_optimize_model(tiny, out, &o, NULL, &err), NMLP_E_INTERRUPTED);
    assert_int_equal(calls, 12); /* not asked again */
    assert_int_not_equal(access(out, F_OK), 0);
    assert_int_equal(access(work, F_OK), 0);
    assert_non_null(strstr(err.hint, "out.work.partial;")); /* the folder that goes on, not one inside it */
    o.on_progress = NULL;
    o.resume = 1;
    nmlp_optimize_result_init(&r, sizeof r);
    nmlp_assert_ok(nmlp_optimize_model(tiny, out, &o, &r, &err), &err);
    assert_string_equal(r.verdict, "leave it dense");
    assert_string_equal(r.chosen, "dense");
    assert_true(r.simulated == 1 && r.ms_before == r.ms_after && r.ms_before > 0);
    assert_true(r.bytes_before == r.bytes_after && r.loss == 0 && isnan(r.verified_loss) && r.seconds > 0);
    assert_int_not_equal(access(work, F_OK), 0);
    assert_int_equal(access(out, F_OK), 0);
    nmlp_test_rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(a_cancelled_call_writes_nothing_and_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
