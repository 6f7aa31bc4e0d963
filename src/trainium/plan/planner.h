/* Finds the kernel and the tiling for an op, a shape and a machine.
 *
 * Candidates are enumerated and ordered by an analytic estimate (plan/strip_plan.h); the best-looking of every kind are
 * built and given to a cost function. Long inputs are simulated on one and two strips: strips repeat, so the second
 * shows the cost of every further one. The best two and the paper's kernels are simulated at full length. The planner
 * knows no simulator: the caller passes one in. Same input, same answer. */
#ifndef NMLP_TRAINIUM_PLAN_PLANNER_H
#define NMLP_TRAINIUM_PLAN_PLANNER_H

#include "base/str.h"
#include "trainium/plan/kernel_table.h"
#include "trainium/plan/strip_plan.h"

typedef struct nmlp_kernel_cost {
    double latency_us;
    double hbm_bytes;
    double tensor_utilisation;           /* of the nominal peak */
    double tensor_utilisation_sustained; /* of the sustained rate */
    double busy_us[NMLP_N_ENGINES];
    int64_t sbuf_bytes;
} nmlp_kernel_cost;

typedef nmlp_status (*nmlp_kernel_cost_fn)(void *ctx, const nmlp_program *program, const nmlp_machine *machine,
                                           nmlp_kernel_cost *out, nmlp_err *err);

typedef struct nmlp_planner {
    const nmlp_machine *machine;
    nmlp_kernel_cost_fn cost;
    void *cost_ctx;
    const char *cache_path; /* NULL: none. Read before, appended after. */
} nmlp_planner;

typedef struct nmlp_plan_candidate {
    const char *kernel; /* name in the kernel table */
    nmlp_tiling tiling;
    nmlp_kernel_cost cost;
    bool has_strip;        /* one of our kernels, found by the search: */
    nmlp_strip_plan strip; /* what the tiling says, as numbers */
} nmlp_plan_candidate;

typedef struct nmlp_kernel_plan {
    nmlp_plan_candidate winner, runner_up;
    nmlp_plan_candidate paper; /* the better of its tables; latency 0 where it has no such kernel. Of an MLP whose
                                * projections differ: its chain where there are factors, AWS's kernel where not. */
    nmlp_bounds bounds;
    double limit_us;    /* the largest bound plus the launch */
    double floor_us;    /* the same with the latencies that no tiling can hide */
    const char *engine; /* the busiest one in the winner */
    size_t n_candidates, n_fitting, n_simulated;
    bool cached;
} nmlp_kernel_plan;

/* `rq->tiling` may fix keys (e.g. x=1: x is given transposed). */
nmlp_status nmlp_kernel_plan_find(nmlp_kernel_plan *plan, const nmlp_planner *planner, nmlp_plan_op op,
                                  const nmlp_kernel_request *rq, nmlp_err *err);
/* Builds a candidate at a shape. */
nmlp_status nmlp_plan_candidate_build(nmlp_program **out, const nmlp_plan_candidate *candidate,
                                      const nmlp_kernel_request *rq, nmlp_err *err);

#endif
