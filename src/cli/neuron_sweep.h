/* The paper's kernel figure: y = x w and y = (x u) v at growing numbers of rows, with our kernel added. Simulated. */
#ifndef NMLP_CLI_NEURON_SWEEP_H
#define NMLP_CLI_NEURON_SWEEP_H

#include "trainium/plan/planner.h"

enum { NMLP_SWEEP_H = 8192, NMLP_SWEEP_R = 4096, NMLP_SWEEP_O = 16384, NMLP_SWEEP_LENGTHS = 6, NMLP_SWEEP_SERIES = 7 };

extern const int64_t nmlp_sweep_lengths[NMLP_SWEEP_LENGTHS]; /* rows */

/* `planned`: our kernel, the tiling found by the planner. */
typedef struct nmlp_sweep_kernel {
    const char *name, *kernel, *tiling;
    bool planned;
} nmlp_sweep_kernel;

enum {
    NMLP_SWEEP_DENSE,
    NMLP_SWEEP_SEQUENTIAL,
    NMLP_SWEEP_NAIVE,
    NMLP_SWEEP_PAPER,
    NMLP_SWEEP_PAPER_T,
    NMLP_SWEEP_OURS,
    NMLP_SWEEP_OURS_T
};
extern const nmlp_sweep_kernel nmlp_sweep_kernels[NMLP_SWEEP_SERIES];

nmlp_status nmlp_sweep_measure(nmlp_kernel_cost *cost, const nmlp_machine *machine, const nmlp_sweep_kernel *kernel,
                               int64_t rows, nmlp_err *err);

/* What the chain needs at least at a number of rows, and the work it does. */
typedef struct nmlp_sweep_limit {
    double latency_us, hbm_bytes;
} nmlp_sweep_limit;

nmlp_sweep_limit nmlp_sweep_limit_of(const nmlp_machine *machine, int64_t rows);
/* Multiplications and additions of the product, dense or chained. */
double nmlp_sweep_flops(const nmlp_sweep_kernel *kernel, int64_t rows);

#endif
