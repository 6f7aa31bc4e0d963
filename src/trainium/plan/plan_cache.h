/* Remembers choices between runs: a text file with one line per problem,
 *   machine-hash op dtype S,H,R,O fixed-tiling kernel tiling kernel tiling
 * (winner, runner-up; "-" for none). The hash covers every number of the machine, so a changed machine file is a new
 * machine. Lines that do not parse are passed over: the cache can only save time. A file that does not begin with such
 * a line is refused, and not added to. */
#ifndef NMLP_TRAINIUM_PLAN_PLAN_CACHE_H
#define NMLP_TRAINIUM_PLAN_PLAN_CACHE_H

#include "trainium/plan/planner.h"

/* Sets plan->cached, winner and runner_up (without cost) when the file knows the problem. A missing file knows nothing.
 */
nmlp_status nmlp_plan_cache_find(const char *path, nmlp_kernel_plan *plan, const nmlp_machine *machine, nmlp_plan_op op,
                                 const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_plan_cache_add(const char *path, const nmlp_kernel_plan *plan, const nmlp_machine *machine,
                                nmlp_plan_op op, const nmlp_kernel_request *rq, nmlp_err *err);

#endif
