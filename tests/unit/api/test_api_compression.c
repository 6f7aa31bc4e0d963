/* nmlp_compress_model and nmlp_quantize_model: wrong values are named by their field, a cancelled call writes nothing,
 * results add up. */
#include <math.h>
#include <unistd.h>

#include "lib/testing.h"
#include "neuronmlp/neuronmlp.h"

int openblas_get_num_threads(void);
void openblas_set_num_threads(int n);

static const char tiny[] = NMLP_TEST_ROOT "/models/tiny";

static nmlp_compression_options quick(void) {
    nmlp_compression_options o;
    nmlp_compression_options_init(&o, sizeof o);
    o.calibration_tokens = 512;
    o.heldout_tokens = 256;
    o.uniform = 1;
    o.refit = 0;
    o.n_threads = 2;
    return o;
}

static void assert_names_a_field(nmlp_status st, const nmlp_err *err, const char *field) {
    assert_int_not_equal(st, NMLP_OK);
    if (strcmp(err->field, field) != 0) fail_msg("field \"%s\", not \"%s\": %s", err->field, field, err->message);
    assert_int_equal(strncmp(err->message, field, strlen(field)), 0);
    if (strstr(err->message, "--") || strstr(err->hint, "--")) fail_msg("%s / %s", err->message, err->hint);
}

static void wrong_values_are_named(void **state) {
    (void)state;
    nmlp_err err;
    char dir[256], out[300];
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/out", dir);
#define REFUSED(change, name)                                                                                          \
    do {                                                                                                               \
        nmlp_compression_options o = quick();                                                                          \
        change;                                                                                                        \
        assert_names_a_field(nmlp_compress_model(tiny, out, &o, NULL, &err), &err, name);                              \
        assert_int_not_equal(access(out, F_OK), 0);                                                                    \
    } while (0)
    REFUSED(o.ratio = 0, "ratio");
    REFUSED(o.ratio = 1.5, "ratio");
    REFUSED(o.ratio = (double)NAN, "ratio");
    REFUSED(o.budget_ms = 1, "budget_ms"); /* and the default ratio */
    REFUSED((o.ratio = 0, o.budget_ms = -1), "budget_ms");
    REFUSED((o.ratio = 0, o.budget_ms = 1, o.target = "trn1"), "budget_ms"); /* uniform ranks */
    REFUSED((o.ratio = 0, o.budget_ms = 1000, o.target = "trn1", o.uniform = 0), "budget_ms");
    REFUSED(o.tile = -1, "tile");
    REFUSED(o.tile = 256, "tile"); /* has more parameters than the dense matrix */
    REFUSED(o.rounds = 9, "rounds");
    REFUSED(o.joint = 3, "joint");
    REFUSED(o.train_steps = -1, "train_steps");
    REFUSED(o.n_threads = -1, "n_threads");
    REFUSED(o.budget_bytes = 4000000, "budget_bytes"); /* and the default ratio */
    REFUSED((o.ratio = 0, o.budget_bytes = -1), "budget_bytes");
    REFUSED((o.attention = 1, o.train_steps = 1), "attention");
    REFUSED((o.slices = 2, o.train_steps = 1), "slices");
    REFUSED(o.slices = 3, "slices"); /* does not divide 1024 */
    REFUSED(o.precision = "int4", "precision");
#undef REFUSED
    nmlp_compression_options o = quick();
    o.calibration = "/no/such.txt";
    nmlp_assert_fails(nmlp_compress_model(tiny, out, &o, NULL, &err), &err, NMLP_E_IO, "/no/such.txt", NULL);
    assert_null(strstr(err.hint, "--"));
    o = quick();
    o.uniform = 0;
    o.heldout_tokens = 0;
    assert_int_not_equal(nmlp_compress_model(tiny, out, &o, NULL, &err), NMLP_OK);
    if (strstr(err.message, "--") || strstr(err.hint, "--")) fail_msg("%s / %s", err.message, err.hint);
    nmlp_test_rmdir(dir);
}

struct heard {
    int calls;
    int stop_at; /* 0: never */
};

static int hear(void *ctx, const char *stage, double done, double total, const char *unit) {
    struct heard *h = ctx;
    assert_true(stage[0] && unit[0] && done >= 0 && done <= total);
    return ++h->calls == h->stop_at;
}

static void a_cancelled_call_writes_nothing_and_figures_add_up(void **state) {
    (void)state;
    nmlp_err err;
    char dir[256], out[300];
    nmlp_compression_result r;
    struct heard all = {0};
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/out", dir);
    nmlp_compression_options o = quick();
    o.ratio = 0.4;
    o.on_progress = hear;
    o.progress_ctx = &all;
    nmlp_compression_result_init(&r, sizeof r);
    openblas_set_num_threads(2);
    int blas_threads = openblas_get_num_threads();
    nmlp_assert_ok(nmlp_compress_model(tiny, out, &o, &r, &err), &err);
    assert_int_equal(openblas_get_num_threads(), blas_threads);
    assert_true(all.calls > 4);
    /* 4 layers of three [1024,256]; removed: 0.4, as near as tiles of 16 allow: half a tile of rank each at most */
    assert_int_equal(r.mlp_params_before, 4 * 3 * 1024 * 256);
    assert_true(fabs((double)r.mlp_params_after - 0.6 * (double)r.mlp_params_before) <= 4 * 3 * 8.0 * (1024 + 256));
    assert_int_equal(r.params_before - r.params_after, r.mlp_params_before - r.mlp_params_after);
    assert_int_equal(r.bytes_before - r.bytes_after, 2 * (r.params_before - r.params_after));
    assert_true(r.heldout_ppl_after > r.heldout_ppl_before && r.heldout_ppl_before > 1 && r.seconds > 0);
    assert_true(isnan(r.trained_ppl_after) && r.time_after_ms == 0);
    nmlp_test_rmdir(dir);
    for (int at = 1; at < all.calls; at += all.calls / 3) {
        struct heard h = {.stop_at = at};
        nmlp_test_mkdtemp(dir, sizeof dir);
        snprintf(out, sizeof out, "%s/out", dir);
        o.progress_ctx = &h;
        assert_int_equal(nmlp_compress_model(tiny, out, &o, NULL, &err), NMLP_E_INTERRUPTED);
        assert_int_equal(h.calls, at); /* not asked again */
        assert_int_not_equal(access(out, F_OK), 0);
        nmlp_test_rmdir(dir);
    }
}

static void quantised_figures_add_up(void **state) {
    (void)state;
    nmlp_err err;
    char dir[256], out[300];
    nmlp_quantization_result r;
    nmlp_quantization_options o;
    struct heard all = {0};
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/out", dir);
    nmlp_quantization_options_init(&o, sizeof o);
    nmlp_quantization_result_init(&r, sizeof r);
    o.calibration_tokens = 512;
    o.heldout_tokens = 256;
    o.context = 128;
    o.n_threads = 2;
    o.on_progress = hear;
    o.progress_ctx = &all;
    nmlp_assert_ok(nmlp_quantize_model(tiny, out, &o, &r, &err), &err);
    /* 8 bits and scales of rows in half the bytes of bf16 */
    assert_true(all.calls > 2 && r.bytes_before == 2 * r.params);
    assert_true(r.bits_per_weight > 8 && r.bits_per_weight < 8.3);
    assert_true(fabs(8 * (double)r.bytes_after / (double)r.params - r.bits_per_weight) < 1e-9);
    assert_true(r.kl > 0 && r.kl < 0.01 && fabs(log(r.ppl_after / r.ppl_before)) < 0.01 && r.heldout_tokens == 256);
    nmlp_test_rmdir(dir);
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/out", dir);
    struct heard first = {.stop_at = 1};
    o.progress_ctx = &first;
    assert_int_equal(nmlp_quantize_model(tiny, out, &o, NULL, &err), NMLP_E_INTERRUPTED);
    assert_int_not_equal(access(out, F_OK), 0);
#define REFUSED(change, name)                                                                                          \
    do {                                                                                                               \
        nmlp_quantization_options_init(&o, sizeof o);                                                                  \
        change;                                                                                                        \
        assert_names_a_field(nmlp_quantize_model(tiny, out, &o, NULL, &err), &err, name);                              \
        assert_int_not_equal(access(out, F_OK), 0);                                                                    \
    } while (0)
    REFUSED(o.format = "q5", "format");
    REFUSED(o.format = "bf16", "format");
    REFUSED(o.format = NULL, "format");
    REFUSED(o.head = "x", "head");
    REFUSED(o.group = 48, "group");
    REFUSED(o.budget_bytes = -1, "budget_bytes");
    REFUSED(o.n_threads = -1, "n_threads");
    REFUSED(o.calibration_tokens = 0, "calibration_tokens");
#undef REFUSED
    nmlp_test_rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(a_cancelled_call_writes_nothing_and_figures_add_up),
        cmocka_unit_test(quantised_figures_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
