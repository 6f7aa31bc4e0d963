/* Points of an optimization: timed, compared, chosen, verified. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "service/optimization_internal.h"

enum { WITHIN_NOISE_PERCENT = 2 };

const char *nmlp_optimize_dir(const struct nmlp_optimize_job *j, int point) {
    if (point == 0) return j->models.model_dir;
    return point == j->trained ? j->trained_dir : j->models.list[point - 1].dir;
}

static const nmlp_mix *mix_of(const struct nmlp_optimize_job *j, int point) {
    return &j->models.list[point == j->trained ? j->trained_from : point - 1].mix;
}

static void fill_loss(const struct nmlp_optimize_job *j, nmlp_optimized_point *p, const nmlp_divergence *d) {
    p->loss = d->nll - d->nll_before;
    p->loss_error = d->rise_error;
    p->kl = d->kl;
    p->within = fmax(p->loss, 0) + p->loss_error <= j->result->bound;
}

static void add_point(struct nmlp_optimize_job *j, const char *name, const nmlp_divergence *d, int64_t bytes,
                      const nmlp_mix *mix) {
    nmlp_optimization *r = j->result;
    nmlp_optimized_point *p = &r->points[r->n_points];
    *p = (nmlp_optimized_point){.bytes = bytes, .within = true};
    int same = 1;
    for (int i = 0; i < r->n_points; i++) same += strncmp(r->points[i].name, name, strlen(name)) == 0;
    snprintf(p->name, sizeof p->name, same > 1 ? "%.26s %d" : "%.39s", name, same);
    if (d) fill_loss(j, p, d);
    p->ranks = mix && nmlp_mix_has_ranks(mix);
    p->bits = mix && nmlp_mix_has_bits(mix);
    r->n_points++;
}

static nmlp_status time_points(struct nmlp_optimize_job *j, nmlp_err *err) {
    nmlp_optimization *r = j->result;
    const char *dirs[NMLP_OPTIMIZED_POINTS_MAX];
    double ms[NMLP_OPTIMIZED_POINTS_MAX];
    if (!nmlp_progress_update(j->models.method.progress, "timing", 0, r->n_points, "models"))
        return nmlp_fail(err, NMLP_E_INTERRUPTED, "timing was stopped");
    for (int i = 0; i < r->n_points; i++) dirs[i] = nmlp_optimize_dir(j, i);
    NMLP_RETURN_IF_FAILED(nmlp_workload_time(&j->timer, dirs, r->n_points, ms, err));
    for (int i = 0; i < r->n_points; i++) r->points[i].ms = ms[i];
    return NMLP_OK;
}

nmlp_status nmlp_optimize_time_models(struct nmlp_optimize_job *j, nmlp_err *err) {
    nmlp_optimization *r = j->result;
    r->n_points = 0;
    add_point(j, "dense", NULL, nmlp_model_measure(&j->models.dense.model).bytes, NULL);
    for (int i = 0; i < j->models.n; i++) {
        const nmlp_mix_model *m = &j->models.list[i];
        add_point(j, m->name, &m->heldout, m->bytes, &m->mix);
    }
    if (j->trained_dir[0]) {
        const nmlp_mix_model *m = &j->models.list[j->trained_from];
        j->trained = r->n_points;
        add_point(j, "trained", &j->trained_loss, m->bytes, &m->mix);
        r->points[j->trained].trained = true;
    }
    return time_points(j, err);
}

nmlp_status nmlp_optimize_time_cuda_forms(struct nmlp_optimize_job *j, nmlp_err *err) {
    const char *dirs[] = {j->models.model_dir, j->models.list[j->q8].dir, j->models.list[j->q4].dir};
    double measured[3], ms[NMLP_QUANT_OPTIONS];
    NMLP_RETURN_IF_FAILED(nmlp_workload_time(&j->timer, dirs, 3, measured, err));
    ms[NMLP_QUANT_OPTION_PLAIN] = measured[0];
    ms[NMLP_QUANT_OPTION_Q8] = measured[1];
    for (int i = 0; i < NMLP_QUANT_OPTION_Q8; i++) ms[i] = measured[2]; /* groups of 32 and 64 differ by 6 % of bytes */
    nmlp_form_times_from_models(&j->times, &j->models.dense.model, &j->result->workload, ms);
    return NMLP_OK;
}

/* The fastest point within the bound among those not taken back. Of points that differ in time by no more than
 * measurements do, the one that loses least. */
static int fastest(const nmlp_optimization *r, const bool *taken_back) {
    int best = 0;
    for (int i = 1; i < r->n_points; i++)
        if (!taken_back[i] && r->points[i].within && r->points[i].ms < r->points[best].ms) best = i;
    double close = r->points[best].ms * (1 + (r->simulated ? 0.1 : WITHIN_NOISE_PERCENT) / 100.0);
    for (int i = 0; i < r->n_points; i++) {
        const nmlp_optimized_point *p = &r->points[i];
        if (!taken_back[i] && p->within && p->ms <= close && p->loss < r->points[best].loss) best = i;
    }
    return best;
}

static nmlp_status verify(struct nmlp_optimize_job *j, nmlp_err *err) {
    nmlp_optimization *r = j->result;
    r->verified = (nmlp_divergence){0};
    r->verified_within = true;
    if (r->chosen == 0 || j->verify.len == 0) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_mix_models_compare(&j->models, nmlp_optimize_dir(j, r->chosen), j->verify.data,
                                                  (int64_t)j->verify.len, &r->verified, err));
    r->verified_within = r->verified.nll - r->verified.nll_before <= r->bound;
    return NMLP_OK;
}

nmlp_status nmlp_optimize_choose(struct nmlp_optimize_job *j, nmlp_err *err) {
    nmlp_optimization *r = j->result;
    bool taken_back[NMLP_OPTIMIZED_POINTS_MAX] = {false};
    for (;;) {
        r->chosen = fastest(r, taken_back);
        NMLP_RETURN_IF_FAILED(verify(j, err));
        if (r->verified_within) break;
        taken_back[r->chosen] = true;
        r->n_stepped_back++;
    }
    const nmlp_optimized_point *p = &r->points[r->chosen];
    r->verdict = p->ranks && p->bits ? NMLP_VERDICT_MIXED
                 : p->ranks          ? NMLP_VERDICT_RANKS
                 : p->bits           ? NMLP_VERDICT_BITS
                                     : NMLP_VERDICT_DENSE;
    if (r->chosen > 0) return nmlp_mix_copy(&r->mix, mix_of(j, r->chosen), err);
    nmlp_quant_format plain = nmlp_quant_option(NMLP_QUANT_OPTION_PLAIN);
    return nmlp_mix_uniform(&r->mix, r->config.n_layers, &plain, &plain, err);
}

nmlp_status nmlp_optimize_draw_frontier(struct nmlp_optimize_job *j, nmlp_err *err) {
    nmlp_optimization *r = j->result;
    nmlp_mix_cost bytes_cost = nmlp_mix_cost_bytes(&j->models.dense.model);
    nmlp_mix_problem bytes = j->problem;
    nmlp_mix dense, mix;
    nmlp_quant_format plain = nmlp_quant_option(NMLP_QUANT_OPTION_PLAIN);
    int64_t fixed = nmlp_mix_fixed_bytes(&j->models.dense.model);
    bytes.cost = &bytes_cost;
    NMLP_RETURN_IF_FAILED(nmlp_mix_uniform(&dense, r->config.n_layers, &plain, &plain, err));
    nmlp_mix_price(&j->problem, &dense);
    double dense_cost = dense.cost;
    nmlp_mix_fini(&dense);
    for (int i = 0; i < NMLP_FRONTIER_MAX; i++) {
        double allowed = r->bound / j->nats_per_kl * pow(2, i - NMLP_FRONTIER_MAX * 0.65);
        NMLP_RETURN_IF_FAILED(nmlp_mix_within_loss(&j->problem, allowed, &mix, err));
        double loss = mix.loss * j->nats_per_kl, ms = r->points[0].ms * mix.cost / dense_cost;
        if (r->simulated) ms = r->points[0].ms - 1e-3 * (dense_cost - mix.cost); /* what is not an MLP stays */
        nmlp_mix_price(&bytes, &mix);
        int n = r->n_frontier;
        bool same = n > 0 && r->frontier[n - 1].loss == loss;
        if (!same) {
            r->frontier[n].loss = loss;
            r->frontier[n].ms = ms;
            r->frontier[n].bytes = (double)fixed + mix.cost;
            r->n_frontier++;
        }
        nmlp_mix_fini(&mix);
    }
    return NMLP_OK;
}
