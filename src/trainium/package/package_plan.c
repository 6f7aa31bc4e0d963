/* Planning the kernels of one form together.
 *
 * How weights are packed follows from three numbers of a plan: tiles of x held at a time (xc), tiles of the activation
 * (ac) and columns of the last product (cols). Each kernel is planned freely; then every kernel's three numbers are
 * tried for all others, and those with the smallest sum of slow-downs are taken. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trainium/neuron/pack.h"
#include "trainium/package/package_internal.h"

void nmlp_package_kernel_id(char id[NMLP_PACKAGE_ID_MAX], size_t form, int64_t rows) {
    snprintf(id, NMLP_PACKAGE_ID_MAX, "mlp_f%zu_s%lld", form, (long long)rows);
}

bool nmlp_package_same_packing(const nmlp_program *a, const nmlp_program *b) {
    for (size_t i = 0; i < a->n_tensors; i++) {
        nmlp_pack pa = {0}, pb = {0};
        if (a->tensors[i].role != NMLP_ROLE_WEIGHT) continue;
        if (!nmlp_pack_find(a, a->tensors[i].name, &pa) || !nmlp_pack_find(b, a->tensors[i].name, &pb)) return false;
        if (memcmp(&pa, &pb, sizeof pa) != 0) return false;
    }
    return true;
}

typedef struct form_search {
    const nmlp_package *package;
    nmlp_mlp_ranks ranks;
    nmlp_plan_candidate best[NMLP_PACKAGE_BUCKETS_MAX];
    nmlp_program *program[NMLP_PACKAGE_BUCKETS_MAX];
} form_search;

static void drop_programs(nmlp_program **programs, int n) {
    for (int i = 0; i < n; i++) {
        nmlp_program_destroy(programs[i]);
        programs[i] = NULL;
    }
}

/* Our best kernel for one bucket; `fix` may be NULL. */
static nmlp_status plan_bucket(form_search *s, int bucket, const nmlp_tiling *fix, nmlp_err *err) {
    const nmlp_package_options *o = s->package->options;
    const nmlp_config *c = &s->package->model->config;
    nmlp_kernel_plan plan;
    nmlp_kernel_request rq = {.shape = {o->buckets[bucket], c->hidden, 0, c->intermediate / (o->tp * o->lnc)},
                              .dtype = o->dtype,
                              .tiling = fix,
                              .machine = o->planner->machine};
    nmlp_kernel_set_ranks(&rq, s->ranks);
    NMLP_RETURN_IF_FAILED(nmlp_kernel_plan_find(&plan, o->planner, NMLP_PLAN_MLP, &rq, err));
    bool ours = strcmp(plan.winner.kernel, nmlp_plan_op_name(NMLP_PLAN_MLP)) == 0;
    s->best[bucket] = ours ? plan.winner : plan.runner_up; /* the paper's kernels do not read packed weights */
    return nmlp_plan_candidate_build(&s->program[bucket], &s->best[bucket], &rq, err);
}

/* Plans all buckets with the packing of `donor`; the sum of slow-downs, INFINITY where some bucket cannot use it. */
static nmlp_status plan_with_packing(form_search *s, const form_search *free_plans, int donor, double *slowdown,
                                     nmlp_err *err) {
    static const char *const keys[] = {"xc", "ac", "cols"};
    const nmlp_package_options *o = s->package->options;
    nmlp_tiling fix = {0};
    nmlp_err refused = {0};
    for (int k = 0; k < 3; k++)
        NMLP_RETURN_IF_FAILED(
            nmlp_tiling_set(&fix, keys[k], nmlp_tiling_get(&free_plans->best[donor].tiling, keys[k], 1), err));
    *slowdown = 0;
    for (int b = 0; b < o->n_buckets; b++) {
        nmlp_status st = plan_bucket(s, b, &fix, &refused);
        if (st != NMLP_OK && st != NMLP_E_LIMIT) {
            if (err) *err = refused;
            return st;
        }
        if (st != NMLP_OK || !nmlp_package_same_packing(free_plans->program[donor], s->program[b])) {
            *slowdown = INFINITY;
            return NMLP_OK;
        }
        *slowdown += s->best[b].cost.latency_us / free_plans->best[b].cost.latency_us;
    }
    return NMLP_OK;
}

static void take(nmlp_package_form *out, form_search *from, const form_search *free_plans, int n) {
    drop_programs(out->program, n);
    for (int b = 0; b < n; b++) {
        out->program[b] = from->program[b];
        out->cost[b] = from->best[b].cost;
        out->tiling[b] = from->best[b].tiling;
        out->free_us[b] = free_plans->best[b].cost.latency_us;
        from->program[b] = NULL;
    }
}

nmlp_status nmlp_package_plan_form(nmlp_package *package, size_t form, nmlp_err *err) {
    int n = package->options->n_buckets;
    form_search free_plans = {.package = package, .ranks = package->forms.list[form].ranks}, tried = free_plans;
    double best = INFINITY;
    nmlp_status st = NMLP_OK;
    for (int b = 0; b < n; b++) NMLP_TRY(plan_bucket(&free_plans, b, NULL, err));
    for (int donor = 0; donor < n; donor++) {
        double slowdown;
        NMLP_TRY(plan_with_packing(&tried, &free_plans, donor, &slowdown, err));
        if (slowdown < best) {
            best = slowdown;
            take(&package->plans[form], &tried, &free_plans, n);
        }
        drop_programs(tried.program, n);
    }
    if (best == INFINITY)
        st = nmlp_fail_field(err, NMLP_E_LIMIT, "buckets", "have no packing of weights in common; use fewer");
out:
    drop_programs(free_plans.program, n);
    drop_programs(tried.program, n);
    return st;
}
