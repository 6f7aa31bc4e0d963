/* Words that the commands about Trainium kernels share. */
#ifndef NMLP_CLI_NEURON_ARGS_H
#define NMLP_CLI_NEURON_ARGS_H

#include "trainium/plan/kernel_table.h"

/* --shape "S,H,R,O", or "S,H,O" without a rank. `what` names the kernel or operation in the error. */
nmlp_status nmlp_cli_parse_shape(nmlp_kernel_shape *shape, const char *text, const char *what, bool has_rank,
                                 nmlp_err *err);
/* --dtype */
nmlp_status nmlp_cli_parse_dtype(nmlp_nc_dtype *dtype, const char *text, nmlp_err *err);

#endif
