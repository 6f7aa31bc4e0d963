#include "lib/neuron_testing.h"

#include "trainium/neuron/program_text.h"
#include "trainium/plan/kernel_table.h"

nmlp_machine nmlp_test_machine(const char *name) {
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_machine_open(&m, name, &err), &err);
    return m;
}

nmlp_program *nmlp_test_program(const char *text) {
    nmlp_program *p = NULL;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_program_parse(&p, "test", text, strlen(text), &err), &err);
    return p;
}

nmlp_program *nmlp_test_kernel(const char *name, const nmlp_machine *m, nmlp_nc_dtype dtype, const int64_t shape[4],
                               const char *tiling_text) {
    nmlp_program *p = NULL;
    nmlp_err err = {0};
    nmlp_tiling tiling;
    const nmlp_kernel *kernel = nmlp_kernel_find(name, &err);
    assert_non_null(kernel);
    nmlp_assert_ok(nmlp_tiling_parse(&tiling, tiling_text, &err), &err);
    nmlp_kernel_request rq = {.shape = {shape[0], shape[1], kernel->has_rank ? shape[2] : 0, shape[3]},
                              .dtype = dtype,
                              .tiling = &tiling,
                              .machine = m};
    nmlp_assert_ok(nmlp_kernel_build(&p, kernel, &rq, &err), &err);
    return p;
}
