/* Finds the kernel and the tiling for an op, a shape and a machine.
 *
 * Candidates are enumerated and ordered by an analytic estimate (plan/strip_plan.h); the best-looking of every kind are
 * put before a judge, which returns the cost of a program. Long inputs are judged on one and two strips: strips repeat,
 * so the second shows the price of every further one. The finalists and the paper's kernels are judged at full length.
 * The planner knows no simulator: the caller passes one in. Same input, same answer. */
#ifndef NMLP_TRAINIUM_PLAN_PLANNER_H
#define NMLP_TRAINIUM_PLAN_PLANNER_H

#include "trainium/plan/kernel_table.h"
#include "base/str.h"
#include "trainium/plan/strip_plan.h"

typedef struct nmlp_kernel_cost {
    double latency_us;
    double hbm_bytes;
    double tensor_utilisation;           /* of the nominal peak */
    double tensor_utilisation_sustained; /* of the sustained rate */
    double busy_us[NMLP_N_ENGINES];
    int64_t sbuf_bytes;
} nmlp_kernel_cost;

typedef nmlp_status (*nmlp_judge_fn)(void *ctx, const nmlp_program *program, const nmlp_machine *machine,
                                     nmlp_kernel_cost *out, nmlp_err *err);

typedef struct nmlp_planner {
    const nmlp_machine *machine;
    nmlp_judge_fn judge;
    void *judge_ctx;
    const char *cache_path; /* NULL: none. Read before, appended after. */
} nmlp_planner;

typedef struct nmlp_choice {
    const char *kernel; /* name in the kernel table */
    nmlp_tiling tiling;
    nmlp_kernel_cost cost;
} nmlp_choice;

typedef struct nmlp_plan {
    nmlp_choice winner, runner_up, paper; /* paper: the better of its tables; latency 0 where it has no such kernel */
    nmlp_bounds bounds;
    double limit_us;    /* the largest bound plus the launch */
    double floor_us;    /* the same with the latencies that no tiling can hide */
    const char *engine; /* the busiest one in the winner */
    size_t n_candidates, n_fitting, n_judged;
    bool cached;
} nmlp_plan;

/* `rq->tiling` may fix keys (e.g. x=1: x is given transposed; shared=1). */
nmlp_status nmlp_plan_find(nmlp_plan *plan, const nmlp_planner *planner, nmlp_plan_op op, const nmlp_kernel_request *rq,
                           nmlp_err *err);
/* Builds a choice at a shape. */
nmlp_status nmlp_choice_build(nmlp_program **out, const nmlp_choice *choice, const nmlp_kernel_request *rq,
                              nmlp_err *err);
/* "rows=512,x=3,…" */
void nmlp_tiling_print(const nmlp_tiling *tiling, nmlp_str *out);

#endif
