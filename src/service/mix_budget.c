#include "service/mix_budget.h"

#include <math.h>

#include "base/dir_copy.h"
#include "base/file.h"
#include "checkpoint/target.h"

static const unsigned every_option = (1u << NMLP_QUANT_OPTIONS) - 1;

void nmlp_mix_budget_fini(nmlp_mix_budget *b) {
    nmlp_mix_fini(&b->mix);
    *b = (nmlp_mix_budget){0};
}

struct job {
    nmlp_mix_models models;
    nmlp_dir_stage output;
    nmlp_form_times times; /* of a budget of time */
    nmlp_mix_cost cost;
    bool of_time;
    double unit;          /* of the cost in one of the budget: 1 byte, or 1000 us */
    double fixed, budget; /* of what never changes, and of all; in units of the budget */
    nmlp_mix_budget *out;
    const nmlp_mix_model *best;
};

static const char *field_of(const struct job *j) { return j->of_time ? "budget_ms" : "budget_bytes"; }

/* Less than any mix takes is refused with what would be possible. */
static nmlp_status refuse(const struct job *j, double least, nmlp_err *err) {
    nmlp_fail_field(err, NMLP_E_LIMIT, field_of(j), "is %.*f; the smallest mix of ranks and bits takes %.*f",
                    j->of_time ? 4 : 0, j->budget, j->of_time ? 4 : 0, least);
    nmlp_fail_hint(err,
                   j->of_time ? "give more time" : "attention, norms and vocabulary have no ranks: give more bytes");
    return NMLP_E_LIMIT;
}

static nmlp_mix_problem problem_of(const struct job *j, int which) {
    return (nmlp_mix_problem){.model = &j->models.dense.model,
                              .survey = &j->models.survey,
                              .cost = &j->cost,
                              .scale = nmlp_mix_scale_none(),
                              .ranks = which != NMLP_BUDGET_BITS,
                              .options = which == NMLP_BUDGET_RANKS ? 1u << NMLP_QUANT_OPTION_PLAIN : every_option};
}

static nmlp_status answer(struct job *j, int which, nmlp_err *err) {
    static const char *const names[] = {"ranks and bits", "bits alone", "ranks alone"};
    nmlp_mix_problem problem = problem_of(j, which);
    nmlp_budget_answer *a = &j->out->answers[which];
    const nmlp_mix_model *model = NULL;
    nmlp_mix mix;
    *a = (nmlp_budget_answer){.name = names[which]};
    NMLP_RETURN_IF_FAILED(nmlp_mix_within_loss(&problem, INFINITY, &mix, err));
    a->least = j->fixed + mix.cost / j->unit;
    nmlp_mix_fini(&mix);
    if (a->least > j->budget) return which == NMLP_BUDGET_MIXED ? refuse(j, a->least, err) : NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_mix_within_cost(&problem, j->unit * (j->budget - j->fixed), &mix, err));
    a->cost = j->fixed + mix.cost / j->unit;
    nmlp_status st = nmlp_mix_models_build(&j->models, a->name, &mix, &model, err);
    nmlp_mix_fini(&mix);
    if (st != NMLP_OK) return st;
    a->possible = true;
    a->bytes = model->bytes;
    a->heldout = model->heldout;
    if (!j->of_time) a->cost = (double)model->bytes;
    if (j->best && j->best->heldout.kl <= model->heldout.kl) return NMLP_OK;
    j->best = model;
    j->out->chosen = which;
    return NMLP_OK;
}

/* The least cost of W [rows,cols] in any format, dense or of the lowest rank. */
static double least_matrix(const struct job *j, int64_t rows, int64_t cols, bool dense, bool lowrank) {
    double least = INFINITY;
    for (int option = 0; option < NMLP_QUANT_OPTIONS; option++) {
        if (dense) least = fmin(least, j->cost.matrix(j->cost.ctx, rows, cols, 0, option));
        if (lowrank) least = fmin(least, j->cost.matrix(j->cost.ctx, rows, cols, j->models.method.tile, option));
    }
    return least;
}

static double least_of_all(const struct job *j) {
    const nmlp_model *m = &j->models.dense.model;
    const nmlp_config *c = &m->config;
    bool tall = nmlp_rank_break_even(c->intermediate, c->hidden) >= j->models.method.tile;
    bool wide = nmlp_rank_break_even(2 * c->intermediate, c->hidden) >= j->models.method.tile;
    double sum = j->cost.mlp_only ? 0 : j->cost.head(j->cost.ctx, 0);
    for (int64_t l = 0; l < c->n_layers; l++) {
        for (int i = 0; i < NMLP_QUANT_GATE && !j->cost.mlp_only; i++) {
            const nmlp_view *view = &m->layers[l].attention[i].w;
            sum += least_matrix(j, view->shape[0], view->shape[1], true, false);
        }
        double apart = 2 * least_matrix(j, c->intermediate, c->hidden, true, tall);
        sum += fmin(apart, least_matrix(j, 2 * c->intermediate, c->hidden, false, tall && wide));
        sum += least_matrix(j, c->hidden, c->intermediate, true, tall);
    }
    return j->fixed + sum / j->unit;
}

/* What the dense model takes. */
static double dense_cost(const struct job *j) {
    const nmlp_config *c = &j->models.dense.model.config;
    const int plain = NMLP_QUANT_OPTION_PLAIN;
    if (!j->of_time) return (double)nmlp_model_measure(&j->models.dense.model).bytes;
    return (double)c->n_layers *
           (2 * j->cost.matrix(j->cost.ctx, c->intermediate, c->hidden, 0, plain) +
            j->cost.matrix(j->cost.ctx, c->hidden, c->intermediate, 0, plain)) /
           j->unit;
}

/* What cannot be is refused before the work. */
static nmlp_status check_budget(const struct job *j, nmlp_err *err) {
    double most = dense_cost(j), least = least_of_all(j);
    if (j->budget < least) return refuse(j, least, err);
    if (j->budget < most) return NMLP_OK;
    if (j->of_time)
        return nmlp_fail_field(err, NMLP_E_ARG, field_of(j), "is %g; the dense MLPs take %.4g ms: nothing to do",
                               j->budget, most);
    return nmlp_fail_field(err, NMLP_E_ARG, field_of(j), "is %.0f; the checkpoint has %.0f: nothing to do", j->budget,
                           most);
}

/* Every product of the MLPs on this CPU, for one row. */
static nmlp_status measure_times(struct job *j, nmlp_err *err) {
    char path[NMLP_MIX_PATH_BYTES];
    bool known = false;
    nmlp_form_timing timing = {.model = &j->models.dense.model,
                               .workload = {.name = "batch", .generate = 1, .batch = 1},
                               .target = "cpu",
                               .isa = j->models.load.isa,
                               .tile = j->models.method.tile,
                               .pool = j->models.dense.pool,
                               .progress = j->models.method.progress};
    uint64_t hash = j->models.fingerprint + (uint64_t)nmlp_pool_threads(j->models.dense.pool);
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, j->models.work.temp_path, "times", err));
    NMLP_RETURN_IF_FAILED(nmlp_form_times_load(&j->times, path, hash, &known, err));
    if (known) return NMLP_OK;
    return nmlp_form_times_measure(&j->times, &timing, err);
}

static nmlp_status save_times(const struct job *j, nmlp_err *err) {
    char path[NMLP_MIX_PATH_BYTES];
    uint64_t hash = j->models.fingerprint + (uint64_t)nmlp_pool_threads(j->models.dense.pool);
    if (!j->of_time) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, j->models.work.temp_path, "times", err));
    return nmlp_form_times_save(&j->times, path, hash, err);
}

static nmlp_status set_cost(struct job *j, nmlp_mix_limit limit, nmlp_err *err) {
    j->of_time = limit.ms > 0;
    if (!j->of_time) {
        j->cost = nmlp_mix_cost_bytes(&j->models.dense.model);
        j->fixed = (double)nmlp_mix_fixed_bytes(&j->models.dense.model);
        j->budget = (double)limit.bytes;
        j->unit = 1;
        return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(measure_times(j, err));
    j->cost = nmlp_form_times_cost(&j->times);
    j->cost.mlp_only = true;
    j->budget = limit.ms;
    j->unit = 1e3;
    return NMLP_OK;
}

static nmlp_status fill(struct job *j, nmlp_err *err) {
    nmlp_mix_budget *out = j->out;
    nmlp_model_size before = nmlp_model_measure(&j->models.dense.model);
    out->params_before = before.params;
    out->mlp_params_before = before.mlp_params;
    out->bytes_before = before.bytes;
    out->params_after = j->best->params;
    out->mlp_params_after = j->best->mlp_params;
    out->bytes_after = j->best->bytes;
    if (j->of_time) {
        out->ms_before = dense_cost(j);
        out->ms_after = out->answers[out->chosen].cost;
    }
    out->calib_tokens = nmlp_calib_windows_calib_tokens(&j->models.windows);
    out->heldout_tokens = nmlp_calib_windows_heldout_tokens(&j->models.windows);
    return nmlp_mix_copy(&out->mix, &j->best->mix, err);
}

nmlp_status nmlp_mix_budget_run(nmlp_mix_budget *out, const nmlp_mix_models_request *r, nmlp_mix_limit limit,
                                nmlp_err *err) {
    struct job j = {.out = out};
    bool leads = nmlp_group_leads(r->method.group);
    nmlp_status st = NMLP_OK;
    *out = (nmlp_mix_budget){0};
    NMLP_RETURN_IF_FAILED(nmlp_target_check(r->out_dir, r->model_dir, err));
    NMLP_TRY(nmlp_mix_models_open(&j.models, r, err));
    NMLP_TRY(set_cost(&j, limit, err));
    NMLP_TRY(check_budget(&j, err));
    if (leads) NMLP_TRY(nmlp_dir_stage_open(&j.output, r->out_dir, false, err));
    NMLP_TRY(nmlp_mix_models_survey(&j.models, err));
    NMLP_TRY(save_times(&j, err));
    for (int which = 0; which < NMLP_BUDGET_ANSWERS; which++) NMLP_TRY(answer(&j, which, err));
    NMLP_TRY(fill(&j, err));
    if (leads) {
        NMLP_TRY(nmlp_dir_copy_files(j.best->dir, j.output.temp_path, true, err));
        NMLP_TRY(nmlp_dir_stage_commit(&j.output, err));
    }
out:
    nmlp_dir_stage_abort(&j.output);
    st = nmlp_mix_models_close(&j.models, st, err);
    if (st != NMLP_OK) nmlp_mix_budget_fini(out);
    return st;
}
