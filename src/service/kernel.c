#include "service/kernel.h"

#include "trainium/sim/time.h"

nmlp_status nmlp_judge_by_time(void *ctx, const nmlp_program *program, const nmlp_machine *machine,
                               nmlp_kernel_cost *out, nmlp_err *err) {
    nmlp_time_report t;
    (void)ctx;
    NMLP_RETURN_IF_FAILED(nmlp_time_run(&t, program, machine, NULL, err));
    *out = (nmlp_kernel_cost){.latency_us = t.latency_us,
                              .hbm_bytes = t.hbm_read_bytes + t.hbm_write_bytes,
                              .tensor_utilisation = t.tensor_utilisation,
                              .tensor_utilisation_sustained = t.tensor_sustained_utilisation,
                              .sbuf_bytes = t.sbuf_bytes};
    for (int e = 0; e < NMLP_N_ENGINES; e++) out->busy_us[e] = t.busy_us[e];
    return NMLP_OK;
}

nmlp_status nmlp_kernel_build_planned(nmlp_program **out, const nmlp_kernel *kernel, const nmlp_kernel_request *rq,
                                      nmlp_err *err) {
    nmlp_planner planner = {.machine = rq->machine, .judge = nmlp_judge_by_time};
    nmlp_plan plan;
    nmlp_plan_op op;
    if (!nmlp_plan_op_parse(kernel->name, &op) || nmlp_tiling_get(rq->tiling, "rows", 0) != 0)
        return nmlp_kernel_build(out, kernel, rq, err);
    NMLP_RETURN_IF_FAILED(nmlp_plan_find(&plan, &planner, op, rq, err));
    return nmlp_choice_build(out, &plan.winner, rq, err);
}
