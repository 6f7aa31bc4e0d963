/* The simulator as the planner's judge. */
#ifndef NMLP_SERVICE_KERNEL_H
#define NMLP_SERVICE_KERNEL_H

#include "trainium/plan/planner.h"

/* An nmlp_judge_fn: simulated time. `ctx` is not used. */
nmlp_status nmlp_judge_by_time(void *ctx, const nmlp_program *program, const nmlp_machine *machine,
                               nmlp_kernel_cost *out, nmlp_err *err);

/* Builds a kernel as named. Ours (xw, xuv, mlp) are planned first, unless the tiling says how many rows a strip has:
 * then it is taken as it is. */
nmlp_status nmlp_kernel_build_planned(nmlp_program **out, const nmlp_kernel *kernel, const nmlp_kernel_request *rq,
                                      nmlp_err *err);

#endif
