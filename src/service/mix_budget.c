#include "service/byte_budget.h"

#include <math.h>

#include "base/dir_copy.h"
#include "checkpoint/target.h"

static const unsigned every_option = (1u << NMLP_QUANT_OPTIONS) - 1;

void nmlp_byte_budget_fini(nmlp_byte_budget *b) {
    nmlp_mix_fini(&b->mix);
    *b = (nmlp_byte_budget){0};
}

struct job {
    nmlp_mix_models models;
    nmlp_dir_stage output;
    nmlp_mix_cost cost;
    int64_t fixed_bytes, bytes;
    nmlp_byte_budget *out;
    const nmlp_mix_model *best;
};

/* Fewer bytes than any mix has are refused with what would be possible. */
static nmlp_status refuse(const struct job *j, int64_t least, nmlp_err *err) {
    nmlp_fail_field(err, NMLP_E_LIMIT, "budget_bytes", "is %lld; the smallest mix of ranks and bits takes %lld",
                    (long long)j->bytes, (long long)least);
    nmlp_fail_hint(err, "attention, norms and vocabulary have no ranks: give more bytes");
    return NMLP_E_LIMIT;
}

static nmlp_status answer(struct job *j, int which, nmlp_err *err) {
    static const char *const names[] = {"ranks and bits", "bits alone", "ranks alone"};
    nmlp_mix_problem problem = {.model = &j->models.dense.model,
                                .survey = &j->models.survey,
                                .cost = &j->cost,
                                .scale = nmlp_mix_scale_none(),
                                .ranks = which != NMLP_BUDGET_BITS,
                                .options = which == NMLP_BUDGET_RANKS ? 1u << NMLP_QUANT_OPTION_PLAIN : every_option};
    nmlp_budget_answer *a = &j->out->answers[which];
    const nmlp_mix_model *model = NULL;
    nmlp_mix mix;
    *a = (nmlp_budget_answer){.name = names[which]};
    NMLP_RETURN_IF_FAILED(nmlp_mix_within_loss(&problem, INFINITY, &mix, err));
    a->least_bytes = j->fixed_bytes + (int64_t)mix.cost;
    nmlp_mix_fini(&mix);
    if (a->least_bytes > j->bytes) return which == NMLP_BUDGET_MIXED ? refuse(j, a->least_bytes, err) : NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_mix_within_cost(&problem, (double)(j->bytes - j->fixed_bytes), &mix, err));
    nmlp_status st = nmlp_mix_models_build(&j->models, a->name, &mix, &model, err);
    nmlp_mix_fini(&mix);
    if (st != NMLP_OK) return st;
    a->possible = true;
    a->bytes = model->bytes;
    a->heldout = model->heldout;
    if (j->best && j->best->heldout.kl <= model->heldout.kl) return NMLP_OK;
    j->best = model;
    j->out->chosen = which;
    return NMLP_OK;
}

/* The fewest bytes of W [rows,cols] in any format, dense or of the lowest rank. */
static double least_matrix(const struct job *j, int64_t rows, int64_t cols, bool dense, bool lowrank) {
    double least = INFINITY;
    for (int option = 0; option < NMLP_QUANT_OPTIONS; option++) {
        if (dense) least = fmin(least, j->cost.matrix(j->cost.ctx, rows, cols, 0, option));
        if (lowrank) least = fmin(least, j->cost.matrix(j->cost.ctx, rows, cols, j->models.method.tile, option));
    }
    return least;
}

static int64_t least_bytes(const struct job *j) {
    const nmlp_model *m = &j->models.dense.model;
    const nmlp_config *c = &m->config;
    bool tall = nmlp_rank_break_even(c->intermediate, c->hidden) >= j->models.method.tile;
    bool wide = nmlp_rank_break_even(2 * c->intermediate, c->hidden) >= j->models.method.tile;
    double sum = j->cost.head(j->cost.ctx, 0);
    for (int64_t l = 0; l < c->n_layers; l++) {
        for (int i = 0; i < NMLP_QUANT_GATE; i++) {
            const nmlp_view *view = nmlp_quant_layer_view(&m->layers[l], i);
            sum += least_matrix(j, view->shape[0], view->shape[1], true, false);
        }
        double apart = 2 * least_matrix(j, c->intermediate, c->hidden, true, tall);
        sum += fmin(apart, least_matrix(j, 2 * c->intermediate, c->hidden, false, tall && wide));
        sum += least_matrix(j, c->hidden, c->intermediate, true, tall);
    }
    return j->fixed_bytes + (int64_t)sum;
}

/* What cannot be is refused before the work. */
static nmlp_status check_bytes(const struct job *j, nmlp_err *err) {
    int64_t most = nmlp_model_measure(&j->models.dense.model).bytes, least = least_bytes(j);
    if (j->bytes < least) return refuse(j, least, err);
    if (j->bytes < most) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "budget_bytes", "is %lld; the checkpoint has %lld: nothing to do",
                           (long long)j->bytes, (long long)most);
}

static nmlp_status fill(struct job *j, nmlp_err *err) {
    nmlp_byte_budget *out = j->out;
    nmlp_model_size before = nmlp_model_measure(&j->models.dense.model);
    out->params_before = before.params;
    out->mlp_params_before = before.mlp_params;
    out->bytes_before = before.bytes;
    out->params_after = j->best->params;
    out->mlp_params_after = j->best->mlp_params;
    out->bytes_after = j->best->bytes;
    out->calib_tokens = nmlp_calib_windows_calib_tokens(&j->models.windows);
    out->heldout_tokens = nmlp_calib_windows_heldout_tokens(&j->models.windows);
    return nmlp_mix_copy(&out->mix, &j->best->mix, err);
}

nmlp_status nmlp_byte_budget_run(nmlp_byte_budget *out, const nmlp_mix_models_request *r, int64_t bytes,
                                 nmlp_err *err) {
    struct job j = {.bytes = bytes, .out = out};
    nmlp_status st = NMLP_OK;
    *out = (nmlp_byte_budget){0};
    NMLP_RETURN_IF_FAILED(nmlp_target_check(r->out_dir, r->model_dir, err));
    NMLP_TRY(nmlp_mix_models_open(&j.models, r, err));
    j.cost = nmlp_mix_cost_bytes(&j.models.dense.model);
    j.fixed_bytes = nmlp_mix_fixed_bytes(&j.models.dense.model);
    NMLP_TRY(check_bytes(&j, err));
    NMLP_TRY(nmlp_dir_stage_open(&j.output, r->out_dir, false, err));
    NMLP_TRY(nmlp_mix_models_survey(&j.models, err));
    for (int which = 0; which < NMLP_BUDGET_ANSWERS; which++) NMLP_TRY(answer(&j, which, err));
    NMLP_TRY(fill(&j, err));
    NMLP_TRY(nmlp_dir_copy_files(j.best->dir, j.output.temp_path, true, err));
    NMLP_TRY(nmlp_dir_stage_commit(&j.output, err));
out:
    nmlp_dir_stage_abort(&j.output);
    st = nmlp_mix_models_close(&j.models, st, err);
    if (st != NMLP_OK) nmlp_byte_budget_fini(out);
    return st;
}
