#include "service/kernel.h"

#include "trainium/sim/time.h"

nmlp_status nmlp_kernel_simulate_cost(void *ctx, const nmlp_program *program, const nmlp_machine *machine,
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

nmlp_planner nmlp_kernel_planner(const nmlp_machine *machine, const char *cache_path) {
    return (nmlp_planner){.machine = machine, .cost = nmlp_kernel_simulate_cost, .cache_path = cache_path};
}

/* Everything that is given, checked and resolved. */
static nmlp_status resolve(nmlp_built_kernel *k, const nmlp_kernel_problem *p, nmlp_err *err) {
    const char *dtype = p->dtype ? p->dtype : "bf16";
    *k = (nmlp_built_kernel){.shape = p->shape, .ranks = p->ranks, .fuse = p->fuse, .fp8 = p->fp8};
    if (p->machine)
        k->machine = *p->machine;
    else
        NMLP_RETURN_IF_FAILED(nmlp_machine_open(&k->machine, p->target, err));
    k->kernel = nmlp_kernel_find(p->kernel, err);
    if (!k->kernel) return NMLP_E_ARG;
    NMLP_RETURN_IF_FAILED(nmlp_tiling_parse(&k->given, p->tiling ? p->tiling : "", err));
    if (!nmlp_nc_dtype_parse(dtype, &k->dtype))
        return nmlp_fail_field(err, NMLP_E_ARG, "dtype", "is \"%.40s\"; expected bf16, fp16 or fp32", dtype);
    return NMLP_OK;
}

static nmlp_kernel_request request_of(const nmlp_built_kernel *k) {
    return (nmlp_kernel_request){.shape = k->shape,
                                 .ranks = k->ranks,
                                 .fuse = k->fuse,
                                 .fp8 = k->fp8,
                                 .dtype = k->dtype,
                                 .tiling = &k->given,
                                 .machine = &k->machine};
}

static nmlp_status find_plan(nmlp_built_kernel *k, nmlp_plan_op op, const char *cache, nmlp_err *err) {
    nmlp_planner planner = nmlp_kernel_planner(&k->machine, cache);
    nmlp_kernel_request rq = request_of(k);
    k->planned = true;
    return nmlp_kernel_plan_find(&k->plan, &planner, op, &rq, err);
}

nmlp_status nmlp_kernel_plan_problem(nmlp_built_kernel *k, const nmlp_kernel_problem *problem, nmlp_err *err) {
    nmlp_plan_op op;
    NMLP_RETURN_IF_FAILED(resolve(k, problem, err));
    if (!nmlp_plan_op_parse(k->kernel->name, &op))
        return nmlp_fail_field(err, NMLP_E_ARG, "kernel", "is \"%s\"; only xw, xuv and mlp are planned",
                               k->kernel->name);
    return find_plan(k, op, problem->plan_cache, err);
}

nmlp_status nmlp_kernel_build_problem(nmlp_built_kernel *k, const nmlp_kernel_problem *problem, nmlp_err *err) {
    nmlp_plan_op op;
    NMLP_RETURN_IF_FAILED(resolve(k, problem, err));
    nmlp_kernel_request rq = request_of(k);
    if (!nmlp_plan_op_parse(k->kernel->name, &op) || nmlp_tiling_get(&k->given, "rows", 0) != 0)
        return nmlp_kernel_build(&k->program, k->kernel, &rq, err);
    NMLP_RETURN_IF_FAILED(find_plan(k, op, problem->plan_cache, err));
    return nmlp_plan_candidate_build(&k->program, &k->plan.winner, &rq, err);
}

void nmlp_built_kernel_fini(nmlp_built_kernel *k) {
    nmlp_program_destroy(k->program);
    k->program = NULL;
}

nmlp_status nmlp_kernel_cost_problem(nmlp_kernel_cost *cost, const nmlp_kernel_problem *problem, nmlp_err *err) {
    nmlp_built_kernel k;
    nmlp_status st = nmlp_kernel_build_problem(&k, problem, err);
    if (st == NMLP_OK) st = nmlp_kernel_simulate_cost(NULL, k.program, &k.machine, cost, err);
    nmlp_built_kernel_fini(&k);
    return st;
}
