/* Options that the commands about Trainium kernels share. */
#ifndef NMLP_CLI_NEURON_ARGS_H
#define NMLP_CLI_NEURON_ARGS_H

#include "service/kernel.h"

/* The words after --target, --kernel (or --op), --shape, --ranks, --shared, --norm, --residual, --fp8, --tiling,
 * --dtype. */
typedef struct nmlp_kernel_args {
    const char *target, *kernel, *shape, *ranks, *tiling, *dtype;
    bool shared, residual, fp8;
    double norm; /* epsilon; 0: none */
} nmlp_kernel_args;

/* The problem they describe; it points into `args`. */
nmlp_status nmlp_cli_kernel_problem(nmlp_kernel_problem *problem, const nmlp_kernel_args *args, nmlp_err *err);
/* Appends what prints the same problem again: " --shape …" and all others that are not defaults. */
void nmlp_cli_put_kernel_args(nmlp_str *out, const nmlp_kernel_args *args);

/* --shape "S,H,R,O", or "S,H,O" without a rank. `what` names the kernel or operation in the error. */
nmlp_status nmlp_cli_parse_shape(nmlp_kernel_shape *shape, const char *text, const char *what, bool has_rank,
                                 nmlp_err *err);

#endif
