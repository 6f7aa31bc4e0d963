/* The simulator as the planner's judge, and what commands about Trainium share. */
#ifndef NMLP_CLI_JUDGE_H
#define NMLP_CLI_JUDGE_H

#include "plan/planner.h"

/* An nmlp_judge_fn: simulated time. `ctx` is not used. */
nmlp_status nmlp_cli_judge(void *ctx, const nmlp_program *program, const nmlp_machine *machine, nmlp_cost *out,
                           nmlp_err *err);

#endif
