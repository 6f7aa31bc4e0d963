/* Any bytes as a table of measured times: refused by line and column, or rows that each have a time. Kernels, which
 * take milliseconds each, are built for one input of 256 only, and of small shapes. */
#include "base/hash64.h"
#include "fuzz/in_memory.h"
#include "service/measured.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BUILT_OF = 256, EXTENT_SMALL = 512 };

static bool builds;

/* Of the linker, by --wrap. */
nmlp_status __real_nmlp_kernel_build_problem(nmlp_built_kernel *kernel, const nmlp_kernel_problem *problem,
                                             nmlp_err *err);
nmlp_status __wrap_nmlp_kernel_build_problem(nmlp_built_kernel *kernel, const nmlp_kernel_problem *problem,
                                             nmlp_err *err);

nmlp_status __wrap_nmlp_kernel_build_problem(nmlp_built_kernel *kernel, const nmlp_kernel_problem *problem,
                                             nmlp_err *err) {
    const nmlp_kernel_shape *s = &problem->shape;
    if (builds && (s->s > EXTENT_SMALL || s->h > EXTENT_SMALL || s->r > EXTENT_SMALL || s->o > EXTENT_SMALL))
        return nmlp_fail(err, NMLP_E_LIMIT, "too large for a test");
    if (builds) return __real_nmlp_kernel_build_problem(kernel, problem, err);
    *kernel = (nmlp_built_kernel){0};
    return problem->kernel[0] ? NMLP_OK : nmlp_fail(err, NMLP_E_ARG, "no kernel is named");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static nmlp_machine machine;
    static bool opened;
    nmlp_measured measured;
    nmlp_err err = {0};
    if (!opened && nmlp_machine_open(&machine, "trn1", &err) != NMLP_OK) abort();
    opened = true;
    builds = nmlp_hash64(data, size, 0) % BUILT_OF == 0;
    nmlp_status st = nmlp_measured_read(&measured, in_memory_file("measured.csv", data, size), &machine, &err);
    if (st != NMLP_OK && !err.message[0]) abort();
    for (int64_t i = 0; st == NMLP_OK && i < measured.n; i++)
        if (builds != (measured.list[i].program != NULL) || !(measured.list[i].measured_us > 0)) abort();
    nmlp_measured_fini(&measured);
    return 0;
}
