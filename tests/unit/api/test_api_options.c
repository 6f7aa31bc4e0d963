/* Structs between a program and a library of different versions, and refusals of the public functions. */
#include "api/options.h"
#include "lib/testing.h"
#include "neuronmlp/neuronmlp.h"

typedef struct first_version {
    size_t struct_bytes;
    int64_t a;
} first_version;

typedef struct second_version {
    size_t struct_bytes;
    int64_t a;
    int64_t b;
} second_version;

static const second_version new_defaults = {sizeof new_defaults, 1, 2};
static const first_version old_defaults = {sizeof old_defaults, 1};

static void older_program_gets_defaults_of_new_fields(void **state) {
    (void)state;
    struct {
        first_version theirs;
        int64_t behind;
    } memory = {.behind = 77};
    second_version ours = new_defaults;
    nmlp_err err;
    nmlp_options_give(&memory.theirs, sizeof memory.theirs, &new_defaults, sizeof new_defaults);
    assert_int_equal(memory.theirs.struct_bytes, sizeof memory.theirs);
    assert_int_equal(memory.theirs.a, 1);
    assert_int_equal(memory.behind, 77);
    memory.theirs.a = 5;
    nmlp_assert_ok(nmlp_options_take(&ours, sizeof ours, &memory.theirs, "thing", &err), &err);
    assert_int_equal(ours.a, 5);
    assert_int_equal(ours.b, 2);
    assert_int_equal(ours.struct_bytes, sizeof ours);
}

static void newer_program_is_served_unless_it_uses_a_new_field(void **state) {
    (void)state;
    second_version theirs;
    first_version ours = old_defaults;
    nmlp_err err;
    memset(&theirs, 0xff, sizeof theirs);
    nmlp_options_give(&theirs, sizeof theirs, &old_defaults, sizeof old_defaults);
    assert_int_equal(theirs.struct_bytes, sizeof theirs);
    assert_int_equal(theirs.b, 0);
    theirs.a = 5;
    nmlp_assert_ok(nmlp_options_take(&ours, sizeof ours, &theirs, "thing", &err), &err);
    assert_int_equal(ours.a, 5);
    theirs.b = 3;
    nmlp_assert_fails(nmlp_options_take(&ours, sizeof ours, &theirs, "thing", &err), &err, NMLP_E_UNSUPPORTED, "thing",
                      NULL);
}

static void uninitialised_options_are_refused(void **state) {
    (void)state;
    nmlp_err err;
    nmlp_llm *llm;
    nmlp_neuron_kernel *kernel;
    nmlp_llm_options zero = {0};
    nmlp_neuron_problem no_size = {0};
    nmlp_compression_options noise;
    memset(&noise, 0xa5, sizeof noise);
    nmlp_assert_fails(nmlp_llm_open(&llm, "x", &zero, &err), &err, NMLP_E_ARG, "nmlp_llm_options_init", NULL);
    nmlp_assert_fails(nmlp_neuron_kernel_create(&kernel, &no_size, &err), &err, NMLP_E_ARG, "nmlp_neuron_problem_init",
                      NULL);
    nmlp_assert_fails(nmlp_compress_model("x", "y", &noise, NULL, &err), &err, NMLP_E_ARG,
                      "nmlp_compression_options_init", NULL);
}

static void missing_arguments_are_refused_and_errors_may_be_ignored(void **state) {
    (void)state;
    nmlp_err err;
    nmlp_llm *llm = (nmlp_llm *)&err;
    nmlp_neuron_problem problem;
    nmlp_neuron_kernel *kernel;
    nmlp_assert_fails(nmlp_llm_open(&llm, "/no/such", NULL, &err), &err, NMLP_E_MISSING, "/no/such", NULL);
    assert_null(llm);
    assert_int_equal(nmlp_llm_open(&llm, "/no/such", NULL, NULL), NMLP_E_MISSING);
    assert_int_equal(nmlp_llm_open(&llm, NULL, NULL, NULL), NMLP_E_ARG);
    assert_int_equal(nmlp_compress_model(NULL, "x", NULL, NULL, NULL), NMLP_E_ARG);
    nmlp_neuron_problem_init(&problem, sizeof problem);
    problem.dtype = NULL;
    assert_int_equal(nmlp_neuron_kernel_create(&kernel, &problem, NULL), NMLP_E_ARG);
    problem.dtype = "int4";
    nmlp_assert_fails(nmlp_neuron_kernel_create(&kernel, &problem, &err), &err, NMLP_E_ARG, "int4", "bf16", NULL);
    nmlp_llm_close(NULL);
    nmlp_neuron_kernel_destroy(NULL);
}

static void wrong_values_of_a_problem_are_named(void **state) {
    (void)state;
    nmlp_err err;
    nmlp_neuron_kernel *kernel;
    nmlp_neuron_problem p;
    static const struct {
        const char *target, *kernel, *dtype, *tiling;
        int64_t outputs;
        const char *part;
    } cases[] = {
        {"trn9", "xuv", "bf16", "", 512, "trn9"},           {"trn2", "yw", "bf16", "", 512, "yw"},
        {"trn2", "xuv", "int4", "", 512, "int4"},           {"trn2", "xuv", "bf16", "rows=x", 512, "rows"},
        {"trn2", "xuv", "bf16", "colour=1", 512, "colour"}, {"trn2", "xuv", "bf16", "", -4, "-4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nmlp_neuron_problem_init(&p, sizeof p);
        p.target = cases[i].target;
        p.kernel = cases[i].kernel;
        p.dtype = cases[i].dtype;
        p.tiling = cases[i].tiling;
        p.rows = p.inputs = p.rank = 128;
        p.outputs = cases[i].outputs;
        assert_int_not_equal(nmlp_neuron_kernel_create(&kernel, &p, &err), NMLP_OK);
        assert_null(kernel);
        if (!strstr(err.message, cases[i].part) || strstr(err.message, "--") || strstr(err.hint, "--"))
            fail_msg("%s / %s", err.message, err.hint);
    }
}

/* x W with 128 rows, 128 inputs and 512 outputs, one tile: 2*S*H*O operations; every operand moves once. */
static void kernel_is_built_simulated_checked_and_printed(void **state) {
    (void)state;
    nmlp_err err;
    nmlp_neuron_kernel *kernel;
    nmlp_neuron_problem problem;
    nmlp_neuron_figures figures;
    const char *source;
    double error;
    nmlp_neuron_problem_init(&problem, sizeof problem);
    nmlp_neuron_figures_init(&figures, sizeof figures);
    problem.target = "trn2";
    problem.kernel = "xw";
    problem.rows = 128;
    problem.inputs = 128;
    problem.outputs = 512;
    nmlp_assert_ok(nmlp_neuron_kernel_create(&kernel, &problem, &err), &err);
    nmlp_assert_ok(nmlp_neuron_kernel_simulate(kernel, &figures, &err), &err);
    assert_true(figures.flops == 2.0 * 128 * 128 * 512);
    assert_true(figures.hbm_read_bytes == 2.0 * (128 * 128 + 128 * 512));
    assert_true(figures.hbm_write_bytes == 2.0 * 128 * 512);
    assert_true(figures.limit_us > 0 && figures.limit_us <= figures.latency_us);
    assert_non_null(strstr(nmlp_neuron_kernel_tiling(kernel), "rows="));
    nmlp_assert_ok(nmlp_neuron_kernel_check(kernel, 7, 1, &error, &err), &err);
    assert_true(error > 0 && error < 0x1p-6); /* rounded to bf16, not wrong */
    nmlp_assert_ok(nmlp_neuron_kernel_emit(kernel, NULL, &source, &err), &err);
    assert_non_null(strstr(source, "import nki\n"));
    nmlp_assert_fails(nmlp_neuron_kernel_emit(kernel, "cuda", &source, &err), &err, NMLP_E_ARG, "cuda", "nki-legacy",
                      NULL);
    nmlp_neuron_kernel_destroy(kernel);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_program_gets_defaults_of_new_fields),
        cmocka_unit_test(newer_program_is_served_unless_it_uses_a_new_field),
        cmocka_unit_test(uninitialised_options_are_refused),
        cmocka_unit_test(missing_arguments_are_refused_and_errors_may_be_ignored),
        cmocka_unit_test(wrong_values_of_a_problem_are_named),
        cmocka_unit_test(kernel_is_built_simulated_checked_and_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
