/* What a model's weights are said to take before they are loaded. */
#include "engine/weights_cpu.h"
#include "lib/testing.h"
#include "service/memory_need.h"

static void open_family(nmlp_model *model, const char *family) {
    char dir[4096];
    nmlp_err err;
    snprintf(dir, sizeof dir, "%s/tests/data/families/%s", NMLP_TEST_ROOT, family);
    nmlp_assert_ok(nmlp_model_open(model, dir, &err), &err);
}

/* One byte: the first layer stays and one other is there at a time. */
static void layers_that_do_not_stay_are_not_counted(void **state) {
    nmlp_model model;
    (void)state;
    open_family(&model, "qwen3");
    nmlp_model_size size = nmlp_model_measure(&model);
    int64_t n = model.config.n_layers;
    assert_true(n > 2);
    double matrices = (double)size.bytes * (double)(size.mlp_params + size.attention_params) / (double)size.params;
    double want = (double)size.bytes - matrices * (double)(n - 2) / (double)n;
    assert_float_equal(nmlp_memory_weights_bytes(&model, 1, false), want, 1);
    assert_float_equal(nmlp_memory_weights_bytes(&model, 0, false), (double)size.bytes, 1);
    nmlp_model_close(&model);
}

/* Experts always stay, whatever was asked for: a need without them would let work begin that cannot end. */
static void experts_are_counted_whole(void **state) {
    static const char *const families[] = {"mixtral", "qwen3-moe", "olmoe"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        nmlp_model model;
        open_family(&model, families[i]);
        assert_true(model.config.n_layers > 1);
        assert_int_equal(nmlp_cpu_weights_resident(&model, 1), model.config.n_layers);
        double bytes = (double)nmlp_model_measure(&model).bytes;
        assert_float_equal(nmlp_memory_weights_bytes(&model, 1, false), bytes, 1);
        nmlp_model_close(&model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_that_do_not_stay_are_not_counted),
        cmocka_unit_test(experts_are_counted_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
