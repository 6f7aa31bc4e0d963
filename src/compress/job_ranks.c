/* The budget of a compression, and the ranks that are chosen within it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compress/job_internal.h"
#include "compress/ranks/rank_file.h"

/* Of a slice: budgets, costs and ranks are a slice's, and all slices of a layer have the same. */
static int64_t width_of(const nmlp_compress_job *j) { return j->model->config.intermediate / j->options->slices; }

/* Parameters of all blocks at these ranks (NULL: dense), of a slice. */
static double params_at(const nmlp_compress_job *j, const nmlp_layer_ranks *ranks) {
    double params = 0;
    for (int64_t b = 0; b < j->n_blocks; b++)
        params += (double)(nmlp_block_params(&j->blocks[b], ranks ? &ranks[b] : NULL) * j->blocks[b].count);
    return params;
}

static double smaller(double a, double b) { return a < b ? a : b; }

/* No choice of ranks takes less: every matrix dense or of the lowest rank, gate and up apart or together. */
static double least_us(const nmlp_compress_job *j) {
    const nmlp_config *c = &j->model->config;
    const nmlp_cost *cost = &j->cost;
    int64_t tile = j->options->tile;
    double tall = smaller(cost->matrix(cost->ctx, width_of(j), c->hidden, 0),
                          cost->matrix(cost->ctx, width_of(j), c->hidden, tile));
    double joint = cost->matrix(cost->ctx, 2 * width_of(j), c->hidden, tile);
    double down = smaller(cost->matrix(cost->ctx, c->hidden, width_of(j), 0),
                          cost->matrix(cost->ctx, c->hidden, width_of(j), tile));
    return (double)c->n_layers * (smaller(2 * tall, joint) + down);
}

/* Time or parameters; a ratio below the uniform ranks' own does not take the uniform ranks out of the race. */
nmlp_status nmlp_compress_budget_set(nmlp_compress_job *j, nmlp_err *err) {
    const nmlp_compress_options *o = j->options;
    const nmlp_config *c = &j->model->config;
    if (o->ranks) {
        j->cost = nmlp_cost_params();
        return NMLP_OK;
    }
    if (o->budget_ms > 0) {
        j->cost = nmlp_cost_time(&o->time);
        j->budget = 1e3 * o->budget_ms;
        double dense_us = (double)c->n_layers * (2 * j->cost.matrix(j->cost.ctx, width_of(j), c->hidden, 0) +
                                                 j->cost.matrix(j->cost.ctx, c->hidden, width_of(j), 0));
        j->report->time_before_ms = 1e-3 * dense_us;
        if (j->budget >= dense_us)
            return nmlp_fail_field(err, NMLP_E_ARG, "budget_ms",
                                   "is %g; the dense MLPs take %.4g ms: there is nothing to compress", o->budget_ms,
                                   1e-3 * dense_us);
        if (j->budget < least_us(j))
            return nmlp_fail_field(err, NMLP_E_ARG, "budget_ms",
                                   "is %g; whatever the ranks (`tile` %lld), the MLPs take %.4g ms or more",
                                   o->budget_ms, (long long)o->tile, 1e-3 * least_us(j));
        return NMLP_OK;
    }
    j->cost = nmlp_cost_params();
    j->budget = floor((1 - o->ratio) * params_at(j, NULL));
    double uniform = 0;
    for (int64_t b = 0; b < j->n_blocks; b++) {
        const nmlp_block *block = &j->blocks[b];
        nmlp_layer_ranks ranks = {0};
        for (int i = 0; i <= block->n_first; i++)
            ranks.rank[i] = nmlp_rank_uniform(block->rows[i], block->cols[i], o->ratio, o->tile);
        if (block->kind == NMLP_MODULE_MLP && ranks.rank[0] == 0) return NMLP_OK;
        uniform += (double)(nmlp_block_params(block, &ranks) * block->count);
    }
    if (uniform > j->budget) j->budget = uniform;
    return NMLP_OK;
}

static nmlp_search search_of(const nmlp_compress_job *j) {
    return (nmlp_search){.engine = j->engine,
                         .blocks = j->blocks,
                         .n_blocks = j->n_blocks,
                         .n_all = j->n_blocks,
                         .factor_files = j->factor_files,
                         .heldout = j->windows.n_heldout ? &j->heldout : NULL,
                         .progress = j->options->progress,
                         .cost = &j->cost,
                         .budget = j->budget,
                         .ratio = j->options->budget_ms > 0 ? 1 - j->options->budget_ms / j->report->time_before_ms
                                                            : j->options->ratio,
                         .tile = j->options->tile,
                         .joint = j->options->joint,
                         .rounds = j->options->rounds};
}

/* What no ranks can satisfy is refused before hours of work. */
nmlp_status nmlp_compress_ranks_check(const nmlp_compress_job *j, nmlp_err *err) {
    const nmlp_config *c = &j->model->config;
    nmlp_search search = search_of(j);
    bool some_tile_pays = true;
    for (int64_t l = 0; l < c->n_layers; l++)
        some_tile_pays &= nmlp_rank_break_even(j->blocks[l].rows[0], c->hidden) >= j->options->tile;
    if (j->options->ranks || (j->options->adaptive && some_tile_pays)) return NMLP_OK;
    return nmlp_search_uniform(&search, j->report->ranks, err);
}

static nmlp_status choose_ranks(nmlp_compress_job *j, nmlp_rank_plan *plan, nmlp_err *err) {
    nmlp_search search = search_of(j);
    nmlp_compress_report *r = j->report;
    if (j->options->ranks) {
        snprintf(plan->name, sizeof plan->name, "given");
        plan->n_candidates = 1;
        memcpy(r->ranks, j->options->ranks, (size_t)r->n_layers * sizeof *r->ranks);
        plan->cost = nmlp_ranks_cost(&search, r->ranks);
        return search.heldout ? nmlp_search_measure(&search, r->ranks, &plan->loss, err) : NMLP_OK;
    }
    if (!j->options->adaptive) {
        snprintf(plan->name, sizeof plan->name, "uniform");
        plan->n_candidates = 1;
        NMLP_RETURN_IF_FAILED(nmlp_search_uniform(&search, r->ranks, err));
        plan->cost = nmlp_ranks_cost(&search, r->ranks);
        return search.heldout ? nmlp_search_measure(&search, r->ranks, &plan->loss, err) : NMLP_OK;
    }
    nmlp_search_result result;
    NMLP_RETURN_IF_FAILED(nmlp_search_adaptive(&search, &result, err));
    const nmlp_rank_candidate *best = &result.candidates[result.best];
    snprintf(plan->name, sizeof plan->name, "%s", best->name);
    plan->n_candidates = result.n_candidates;
    plan->loss = best->loss;
    plan->cost = best->cost;
    memcpy(r->ranks, best->ranks, (size_t)j->n_blocks * sizeof *r->ranks);
    nmlp_search_result_fini(&result);
    return NMLP_OK;
}

static nmlp_status open_heldout(nmlp_compress_job *j, nmlp_err *err) {
    const nmlp_compress_effort *effort = nmlp_compress_effort_of(&j->model->config);
    int64_t n_probe = (effort->probe_tokens + j->windows.context - 1) / j->windows.context;
    nmlp_heldout_options options = {.n_probe = j->options->adaptive && !j->options->ranks ? n_probe : 0,
                                    .step = effort->score_step,
                                    .group = j->options->group,
                                    .times = &j->report->times};
    NMLP_RETURN_IF_FAILED(nmlp_heldout_create(&j->heldout, j->engine, &j->windows, &options, err));
    j->report->heldout_measured = true;
    j->report->dense = j->heldout.dense;
    return NMLP_OK;
}

nmlp_status nmlp_compress_ranks_find(nmlp_compress_job *j, nmlp_err *err) {
    nmlp_compress_report *r = j->report;
    nmlp_rank_plan plan;
    char path[NMLP_COMPRESS_PATH_MAX_BYTES];
    nmlp_work_state state;
    nmlp_work_tally tally = {0};
    memset(&plan, 0, sizeof plan);
    if (j->windows.n_heldout) NMLP_RETURN_IF_FAILED(open_heldout(j, err));
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, j->folders.work.temp_path, "ranks", err));
    NMLP_RETURN_IF_FAILED(
        nmlp_rank_plan_read(path, j->fingerprint.search, j->blocks, j->n_blocks, &plan, r->ranks, &state, err));
    tally.n[state]++;
    nmlp_work_tally_note(&tally, "ranks", j->options->progress);
    NMLP_RETURN_IF_FAILED(nmlp_group_meet(j->options->group, err)); /* nobody writes before all have looked */
    if (state != NMLP_WORK_VALID) {
        NMLP_RETURN_IF_FAILED(choose_ranks(j, &plan, err));
        if (nmlp_group_leads(j->options->group))
            NMLP_RETURN_IF_FAILED(nmlp_rank_plan_write(path, j->fingerprint.search, &plan, r->ranks, j->n_blocks, err));
    }
    memcpy(r->chosen, plan.name, sizeof r->chosen);
    r->n_candidates = (int)plan.n_candidates;
    r->factored = r->final = plan.loss;
    if (j->options->budget_ms > 0) r->time_after_ms = 1e-3 * plan.cost;
    return NMLP_OK;
}

nmlp_status nmlp_compress_survey_make(nmlp_compress_job *j, nmlp_loss_survey *survey, nmlp_err *err) {
    char path[NMLP_COMPRESS_PATH_MAX_BYTES];
    nmlp_work_state state;
    nmlp_work_tally tally = {0};
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, j->folders.work.temp_path, "survey", err));
    NMLP_RETURN_IF_FAILED(
        nmlp_loss_survey_read(path, j->fingerprint.search, j->model->config.n_layers, survey, &state, err));
    tally.n[state]++;
    nmlp_work_tally_note(&tally, "survey", j->options->progress);
    NMLP_RETURN_IF_FAILED(nmlp_work_agree(j->options->group, state, j->folders.work.temp_path, err));
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(open_heldout(j, err));
    nmlp_search search = search_of(j);
    NMLP_RETURN_IF_FAILED(nmlp_loss_survey_make(survey, &search, err));
    if (!nmlp_group_leads(j->options->group)) return NMLP_OK;
    return nmlp_loss_survey_write(path, j->fingerprint.search, survey, err);
}
