/* What the built-in model asks of a machine, against numbers made from its shape by hand. */
#include <math.h>

#include "bench/model_work.h"
#include "lib/testing.h"

static void the_built_in_model_is_counted(void **state) {
    const double layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 1024, head = 8192 * 256;
    nmlp_err err;
    nmlp_model model;
    (void)state;
    nmlp_assert_ok(nmlp_model_open(&model, NMLP_TEST_ROOT "/models/tiny", &err), &err);
    nmlp_model_work work = nmlp_model_work_of(&model);
    nmlp_model_close(&model);
    assert_true(work.layer_params == 4 * layer);
    assert_true(work.head_params == head);
    assert_true(fabs(nmlp_model_work_step_gb(&work) - 2e-9 * (4 * layer + head)) < 1e-12);
    /* 64 tokens see 32.5 keys in the mean; a key costs 4 operations in each of 4 layers, 4 heads and 64 columns */
    double tokens = 64, weights = 2 * (4 * layer * tokens + head), attention = 4.0 * 4 * 4 * 64 * 32.5 * tokens;
    assert_true(fabs(nmlp_model_work_prompt_gflop(&work, tokens) * tokens - 1e-9 * (weights + attention)) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_built_in_model_is_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
