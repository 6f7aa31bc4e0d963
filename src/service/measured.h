/* Measured times of kernels from a table, ready to be simulated again.
 *
 * The table is a CSV file with a header line, as bench_device.py of a package writes it: kernel, s, h, o, us are
 * needed; r, gate, up, down, shared, norm (epsilon), residual, fp8 (1: weights are), dtype, tiling ("key=value
 * key=value"), launch (1: the time includes the start of the kernel) are optional. Lines that begin with # are skipped.
 */
#ifndef NMLP_SERVICE_MEASURED_H
#define NMLP_SERVICE_MEASURED_H

#include "service/kernel.h"
#include "trainium/fit/fit.h"

typedef struct nmlp_measured {
    nmlp_built_kernel *kernels;
    nmlp_fit_measurement *list;
    int64_t n;
} nmlp_measured;

/* Errors name the line and the column. Release with nmlp_measured_fini, also after a failure. */
nmlp_status nmlp_measured_read(nmlp_measured *measured, const char *path, const nmlp_machine *machine, nmlp_err *err);
void nmlp_measured_fini(nmlp_measured *measured);

#endif
