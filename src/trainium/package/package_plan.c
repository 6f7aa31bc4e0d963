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
#include "trainium/plan/strip_cost.h"

void nmlp_package_kernel_id(char id[NMLP_PACKAGE_ID_MAX], size_t form, int64_t rows) {
    snprintf(id, NMLP_PACKAGE_ID_MAX, "mlp_f%zu_s%lld", form, (long long)rows);
}

bool nmlp_package_same_packing(const nmlp_program *a, const nmlp_program *b) {
    for (size_t i = 0; i < a->n_tensors; i++) {
        nmlp_pack pa = {0}, pb = {0};
        nmlp_emit_weight w;
        if (a->tensors[i].role != NMLP_ROLE_WEIGHT) continue;
        if (nmlp_emit_weight_of(a, (int)i, &w) && (w.scales || w.gain))
            continue; /* follow from the packing of weights */
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
                              .fuse = s->package->fuse,
                              .fp8 = s->package->fp8,
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

static const char *const fuse_names[NMLP_N_PACKAGE_FUSES] = {"auto", "none", "norm", "all"};

const char *nmlp_package_fuse_name(nmlp_package_fuse fuse) { return fuse_names[fuse]; }

bool nmlp_package_fuse_parse(const char *name, nmlp_package_fuse *fuse) {
    for (int i = 0; i < NMLP_N_PACKAGE_FUSES; i++) {
        if (strcmp(name, fuse_names[i]) != 0) continue;
        *fuse = (nmlp_package_fuse)i;
        return true;
    }
    return false;
}

static nmlp_status plan_all(nmlp_package *p, nmlp_package_fuse fuse, nmlp_err *err) {
    const nmlp_package_options *o = p->options;
    double epsilon = p->model->config.rms_eps;
    p->fuse = (nmlp_mlp_fusion){.norm_e12 = fuse >= NMLP_PACKAGE_FUSE_NORM ? llround(epsilon * 1e12) : 0,
                                .residual = fuse == NMLP_PACKAGE_FUSE_ALL};
    if (fuse >= NMLP_PACKAGE_FUSE_NORM && p->fuse.norm_e12 == 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "fuse",
                               "is %s, and the model's norms have an epsilon of %g, below 1e-12", fuse_names[fuse],
                               epsilon);
    p->report->fused = fuse;
    for (int b = 0; b < o->n_buckets; b++) p->report->bucket_us[b] = p->report->free_bucket_us[b] = 0;
    for (size_t f = 0; f < p->forms.n; f++) {
        NMLP_RETURN_IF_FAILED(nmlp_package_plan_form(p, f, err));
        for (int b = 0; b < o->n_buckets; b++) {
            double layers = (double)p->forms.list[f].n_layers, launch = o->planner->machine->launch_us;
            p->report->bucket_us[b] += layers * (p->plans[f].cost[b].latency_us - launch);
            p->report->free_bucket_us[b] += layers * (p->plans[f].free_us[b] - launch);
        }
        if (!nmlp_progress_update(o->progress, "planning", (double)(f + 1), (double)p->forms.n, "forms"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "the package was stopped");
    }
    return NMLP_OK;
}

/* A norm of its own at least reads x and writes it back, each after the other. */
static double separate_norm_us(const nmlp_package *p, int64_t rows) {
    const nmlp_machine *m = p->options->planner->machine;
    double bytes = 2 * (double)rows * (double)p->model->config.hidden * (double)nmlp_nc_dtype_bytes(p->options->dtype);
    double trips = 2 * (m->dma_issue_ns + m->dma_start_ns + m->dma_done_ns);
    return 1e-3 * (trips + bytes / nmlp_dma_peak_bytes_per_ns(m));
}

/* Plain kernels, and kernels with the norm against those and norms of their own: the smaller sum of ratios, a bucket
 * each. */
static nmlp_status plan_either(nmlp_package *p, nmlp_err *err) {
    const nmlp_package_options *o = p->options;
    double plain[NMLP_PACKAGE_BUCKETS_MAX], ratios = 0;
    NMLP_RETURN_IF_FAILED(plan_all(p, NMLP_PACKAGE_FUSE_NONE, err));
    if (llround(p->model->config.rms_eps * 1e12) == 0) return NMLP_OK;
    for (int b = 0; b < o->n_buckets; b++) plain[b] = p->report->bucket_us[b] + p->report->norm_us[b];
    NMLP_RETURN_IF_FAILED(plan_all(p, NMLP_PACKAGE_FUSE_NORM, err));
    for (int b = 0; b < o->n_buckets; b++) ratios += p->report->bucket_us[b] / plain[b];
    return ratios < (double)o->n_buckets ? NMLP_OK : plan_all(p, NMLP_PACKAGE_FUSE_NONE, err);
}

nmlp_status nmlp_package_plan(nmlp_package *p, nmlp_err *err) {
    const nmlp_package_options *o = p->options;
    for (int b = 0; b < o->n_buckets; b++)
        p->report->norm_us[b] = (double)p->model->config.n_layers * separate_norm_us(p, o->buckets[b]);
    return o->fuse == NMLP_PACKAGE_FUSE_AUTO ? plan_either(p, err) : plan_all(p, o->fuse, err);
}
