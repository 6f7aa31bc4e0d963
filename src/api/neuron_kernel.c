/* nmlp_neuron_kernel: planner, simulator and emitter around one tile program. */
#include "neuronmlp/neuron_kernel.h"

#include "service/kernel.h"
#include "api/options.h"
#include "base/mem.h"
#include "base/pool.h"
#include "trainium/emit/emit.h"
#include "trainium/sim/check_run.h"
#include "trainium/sim/time.h"

struct nmlp_neuron_kernel {
    nmlp_built_kernel built;
    nmlp_str tiling;
    nmlp_str source;
};

static const nmlp_neuron_problem problem_defaults = {
    .struct_bytes = sizeof problem_defaults, .target = "trn1", .kernel = "xuv", .dtype = "bf16", .tiling = ""};

void nmlp_neuron_problem_init(nmlp_neuron_problem *problem, size_t struct_bytes) {
    nmlp_options_give(problem, struct_bytes, &problem_defaults, sizeof problem_defaults);
}

void nmlp_neuron_figures_init(nmlp_neuron_figures *figures, size_t struct_bytes) {
    nmlp_neuron_figures ours = {0};
    nmlp_options_give(figures, struct_bytes, &ours, sizeof ours);
}

static nmlp_status build(nmlp_neuron_kernel *k, const nmlp_neuron_problem *p, nmlp_err *err) {
    nmlp_kernel_problem problem = {.target = p->target,
                                   .kernel = p->kernel,
                                   .shape = {p->rows, p->inputs, p->rank, p->outputs},
                                   .tiling = p->tiling,
                                   .dtype = p->dtype,
                                   .plan_cache = p->plan_cache};
    NMLP_RETURN_IF_FAILED(nmlp_kernel_build_problem(&k->built, &problem, err));
    if (k->built.planned) nmlp_tiling_print(&k->built.plan.winner.tiling, &k->tiling);
    return nmlp_str_status(&k->tiling, err);
}

nmlp_status nmlp_neuron_kernel_create(nmlp_neuron_kernel **out, const nmlp_neuron_problem *problem, nmlp_err *err) {
    nmlp_neuron_problem ours = problem_defaults;
    if (!out || !problem)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_neuron_kernel_create needs a place for the kernel and a problem");
    *out = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ours, sizeof ours, problem, "nmlp_neuron_problem", err));
    if (!ours.target || !ours.kernel || !ours.dtype || !ours.tiling)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_neuron_problem: target, kernel, dtype and tiling must not be NULL");
    nmlp_neuron_kernel *k = nmlp_mem_new(1, sizeof *k, err);
    if (!k) return NMLP_E_NOMEM;
    nmlp_str_init(&k->tiling);
    nmlp_str_init(&k->source);
    nmlp_status st = build(k, &ours, err);
    if (st != NMLP_OK) {
        nmlp_neuron_kernel_destroy(k);
        return st;
    }
    *out = k;
    return NMLP_OK;
}

void nmlp_neuron_kernel_destroy(nmlp_neuron_kernel *k) {
    if (!k) return;
    nmlp_built_kernel_fini(&k->built);
    nmlp_str_fini(&k->tiling);
    nmlp_str_fini(&k->source);
    nmlp_mem_free(k);
}

const char *nmlp_neuron_kernel_tiling(const nmlp_neuron_kernel *k) { return nmlp_str_text(&k->tiling); }

nmlp_status nmlp_neuron_kernel_simulate(nmlp_neuron_kernel *k, nmlp_neuron_figures *figures, nmlp_err *err) {
    nmlp_time_report t;
    nmlp_neuron_figures ours;
    if (!k || !figures)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_neuron_kernel_simulate needs a kernel and a place for the figures");
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ours, sizeof ours, figures, "nmlp_neuron_figures", err));
    NMLP_RETURN_IF_FAILED(nmlp_time_run(&t, k->built.program, &k->built.machine, NULL, err));
    ours = (nmlp_neuron_figures){.latency_us = t.latency_us,
                                 .limit_us = k->built.planned ? k->built.plan.limit_us : 0,
                                 .hbm_read_bytes = t.hbm_read_bytes,
                                 .hbm_write_bytes = t.hbm_write_bytes,
                                 .flops = t.flops,
                                 .tensor_utilisation = t.tensor_utilisation,
                                 .tensor_utilisation_sustained = t.tensor_sustained_utilisation,
                                 .instructions = t.n_total,
                                 .sbuf_bytes = t.sbuf_bytes};
    nmlp_options_give(figures, figures->struct_bytes, &ours, sizeof ours);
    return NMLP_OK;
}

nmlp_status nmlp_neuron_kernel_check(nmlp_neuron_kernel *k, uint64_t seed, int n_threads, double *max_rel_err,
                                     nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_pool *pool = NULL;
    nmlp_check_report check;
    if (!k) return nmlp_fail(err, NMLP_E_ARG, "nmlp_neuron_kernel_check needs a kernel");
    NMLP_TRY(nmlp_pool_create(&pool, n_threads, err));
    NMLP_TRY(nmlp_check_run(&check, k->built.program, seed, pool, NULL, err));
    if (max_rel_err) *max_rel_err = check.max_rel_err;
out:
    nmlp_pool_destroy(pool);
    return st;
}

nmlp_status nmlp_neuron_kernel_emit(nmlp_neuron_kernel *k, const char *dialect, const char **source, nmlp_err *err) {
    nmlp_time_report t;
    if (!k || !source)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_neuron_kernel_emit needs a kernel and a place for its source");
    nmlp_emit_options options = {.dialect = nmlp_dialect_for(&k->built.machine), .machine = &k->built.machine};
    if (dialect && !nmlp_dialect_parse(dialect, &options.dialect))
        return nmlp_fail(err, NMLP_E_ARG, "dialect is \"%s\"; expected nki or nki-legacy", dialect);
    NMLP_RETURN_IF_FAILED(nmlp_time_run(&t, k->built.program, &k->built.machine, NULL, err));
    options.latency_us = t.latency_us;
    nmlp_str_clear(&k->source);
    NMLP_RETURN_IF_FAILED(nmlp_emit_kernel(&k->source, k->built.program, &options, NULL, err));
    NMLP_RETURN_IF_FAILED(nmlp_str_status(&k->source, err));
    *source = nmlp_str_text(&k->source);
    return NMLP_OK;
}
