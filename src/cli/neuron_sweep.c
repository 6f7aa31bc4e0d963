#include "cli/neuron_sweep.h"

#include <string.h>

#include "service/kernel.h"

const int64_t nmlp_sweep_lengths[NMLP_SWEEP_LENGTHS] = {1024, 2048, 4096, 8192, 16384, 32768};

const nmlp_sweep_kernel nmlp_sweep_kernels[NMLP_SWEEP_SERIES] = {
    {"dense (xw-opt)", "xw-opt", "m=8", false}, {"sequential", "xuv-seq", "", false},
    {"naive fusion", "xuv-naive", "", false},   {"paper XUV", "xuv-fused", "", false},
    {"paper XtUV", "xtuv-fused", "", false},    {"ours XUV", "xuv", "", true},
    {"ours XtUV", "xuv", "x=1", true},
};

nmlp_status nmlp_sweep_measure(nmlp_kernel_cost *cost, const nmlp_machine *machine, const nmlp_sweep_kernel *s,
                               int64_t rows, nmlp_err *err) {
    const nmlp_kernel *kernel = nmlp_kernel_find(s->kernel, err);
    if (!kernel) return NMLP_E_MISSING;
    nmlp_kernel_problem problem = {.machine = machine,
                                   .kernel = s->kernel,
                                   .shape = {rows, NMLP_SWEEP_H, kernel->has_rank ? NMLP_SWEEP_R : 0, NMLP_SWEEP_O},
                                   .tiling = s->tiling};
    return nmlp_kernel_cost_problem(cost, &problem, err);
}

nmlp_sweep_limit nmlp_sweep_limit_of(const nmlp_machine *machine, int64_t rows) {
    const double h = NMLP_SWEEP_H, r = NMLP_SWEEP_R, o = NMLP_SWEEP_O, s = (double)rows, bytes_each = 2;
    nmlp_kernel_request rq = {
        .shape = {rows, NMLP_SWEEP_H, NMLP_SWEEP_R, NMLP_SWEEP_O}, .dtype = NMLP_NC_BF16, .machine = machine};
    nmlp_bounds bounds = nmlp_bounds_of(NMLP_PLAN_XUV, &rq);
    return (nmlp_sweep_limit){.latency_us = bounds.largest_ns * 1e-3 + machine->launch_us,
                              .hbm_bytes = bytes_each * (s * h + h * r + r * o + s * o)};
}

double nmlp_sweep_flops(const nmlp_sweep_kernel *kernel, int64_t rows) {
    const double h = NMLP_SWEEP_H, r = NMLP_SWEEP_R, o = NMLP_SWEEP_O;
    bool dense = strcmp(kernel->kernel, nmlp_sweep_kernels[NMLP_SWEEP_DENSE].kernel) == 0;
    return 2 * (double)rows * (dense ? h * o : r * (h + o));
}
