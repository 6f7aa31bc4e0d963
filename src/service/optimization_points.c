/* Points of an optimization: what was built, how long each takes, and the frontier that is drawn beside them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "service/optimization_internal.h"

const char *nmlp_optimize_dir(const struct nmlp_optimize_job *j, int point) {
    if (point == 0) return j->models.model_dir;
    return point == j->trained ? j->trained_dir : j->models.list[point - 1].dir;
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
    for (int i = 0; i < NMLP_QUANT_OPTIONS; i++) {
        bool q4 = nmlp_quant_option(i).dtype == NMLP_DTYPE_Q4; /* groups of 32 and 64 differ by 6 % of bytes */
        ms[i] = q4 ? measured[2] : measured[1];
    }
    ms[NMLP_QUANT_OPTION_PLAIN] = measured[0];
    nmlp_form_times_from_models(&j->times, &j->models.dense.model, &j->result->workload, ms);
    return NMLP_OK;
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
