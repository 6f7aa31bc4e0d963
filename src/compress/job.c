/* A compression from beginning to end. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dir_stage.h"
#include "base/ints.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "checkpoint/target.h"
#include "compress/compress.h"
#include "compress/ranks/rank_file.h"
#include "compress/refit/refit.h"
#include "compress/factor/expert_ranks.h"
#include "compress/factor/factor_pass.h"
#include "compress/record.h"
#include "compress/work.h"
#include "compress/card.h"
#include "compress/write.h"
#include "linalg/linalg.h"

enum { PATH_MAX_BYTES = 4096, CURVE_POINTS_MAX = 33 };

static const struct effort {
    int rounds;
    int64_t heldout_tokens;
    int64_t probe_tokens;
    int64_t score_step; /* of so many positions one is scored: the head of a large model is large too */
} thorough = {2, 8192, 4096, 1}, quick = {0, 2048, 1024, 4};

static double mlp_params(const nmlp_config *c) {
    double params = 0;
    for (int64_t l = 0; l < c->n_layers; l++)
        params += 3.0 * (double)c->hidden * (double)nmlp_config_mlp_inner(c, l) * (double)nmlp_config_mlp_count(c, l);
    return params;
}

bool nmlp_compress_is_large(const nmlp_config *c) {
    const double large_params = 200e6; /* of all MLPs */
    return mlp_params(c) >= large_params;
}

static const struct effort *effort_for(const nmlp_config *c) { return nmlp_compress_is_large(c) ? &quick : &thorough; }

nmlp_compress_options nmlp_compress_defaults(void) {
    return (nmlp_compress_options){.tile = 32,
                                   .slices = 1,
                                   .adaptive = true,
                                   .refit = true,
                                   .whiten = true,
                                   .row_weights = true,
                                   .shrink = true,
                                   .cap = 0.01,
                                   .joint = NMLP_JOINT_AUTO,
                                   .rounds = -1,
                                   .calib_tokens = 65536,
                                   .heldout_tokens = -1,
                                   .context = 512,
                                   .calib_name = ""};
}

int64_t nmlp_compress_cpu_tile(const nmlp_config *config) {
    enum { SMALL_HIDDEN = 512 };
    return config->hidden <= SMALL_HIDDEN ? 16 : 32;
}

double nmlp_compress_removed(const nmlp_compress_report *r) {
    bool attention = r->n_blocks > r->n_layers;
    double before = (double)(r->mlp_params_before + (attention ? r->attention_params_before : 0));
    double after = (double)(r->mlp_params_after + (attention ? r->attention_params_after : 0));
    return 1 - after / before;
}

void nmlp_compress_report_fini(nmlp_compress_report *r) {
    nmlp_mem_free(r->ranks);
    nmlp_mem_free(r->nmse);
    nmlp_mem_free(r->attention_nmse);
    nmlp_mem_free(r->curve);
    nmlp_mem_free(r->layer_error);
    nmlp_mem_free(r->layer_error_before);
    *r = (nmlp_compress_report){0};
}

struct job {
    int blas_threads; /* what OpenBLAS is given back at the end */
    nmlp_engine *engine;
    const nmlp_model *model;
    const nmlp_compress_options *options; /* with every choice made */
    nmlp_compress_options chosen;
    nmlp_compress_report *report;
    nmlp_calib_windows windows;
    nmlp_window_share share;
    nmlp_dir_stage output; /* held from the beginning: an output that cannot be written is found before the work */
    nmlp_dir_stage work;
    nmlp_compress_fingerprint fingerprint;
    nmlp_block *blocks; /* [n_blocks] MLPs of all layers, then their attentions where they take part */
    int64_t n_blocks;
    nmlp_factor_file *factor_files; /* [n_blocks] */
    nmlp_layer_file *finished;      /* [L, n_mlps], then those of attentions [L], without data where they stay dense */
    int64_t n_mlps;                 /* at most of a layer */
    nmlp_heldout heldout;
    nmlp_cost cost;
    double budget;
};

/* Of a slice: budgets, costs and ranks are a slice's, and all slices of a layer have the same. */
static int64_t width_of(const struct job *j) { return j->model->config.intermediate / j->options->slices; }

/* Parameters of all blocks at these ranks (NULL: dense), of a slice. */
static double params_at(const struct job *j, const nmlp_layer_ranks *ranks) {
    double params = 0;
    for (int64_t b = 0; b < j->n_blocks; b++)
        params += (double)(nmlp_block_params(&j->blocks[b], ranks ? &ranks[b] : NULL) * j->blocks[b].count);
    return params;
}

/* The finished attention of a layer. */
static nmlp_layer_file *finished_attention(const struct job *j, int64_t l) {
    return &j->finished[j->model->config.n_layers * j->n_mlps + l];
}

static nmlp_status check_range(const char *field, int64_t value, int64_t least, int64_t most, nmlp_err *err) {
    if (value >= least && value <= most) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, field, "is %lld; it must be from %lld to %lld", (long long)value,
                           (long long)least, (long long)most);
}

/* Sums and products of counts within these bounds fit 64 bits. */
static nmlp_status check_counts(const nmlp_compress_options *o, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_range("tile", o->tile, 1, 1 << 24, err));
    NMLP_RETURN_IF_FAILED(check_range("context", o->context, 2, INT64_C(1) << 31, err));
    NMLP_RETURN_IF_FAILED(check_range("calibration_tokens", o->calib_tokens, 1, INT64_C(1) << 40, err));
    NMLP_RETURN_IF_FAILED(check_range("heldout_tokens", o->heldout_tokens, 0, INT64_C(1) << 40, err));
    NMLP_RETURN_IF_FAILED(check_range("rounds", o->rounds, 0, 8, err));
    if (o->cap >= 0 && o->cap <= 1) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "cap", "is %g; it must be from 0 (none) to 1", o->cap);
}

static nmlp_status check_slices(const nmlp_model *m, const nmlp_compress_options *o, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_range("slices", o->slices, 1, NMLP_SLICES_MAX, err));
    if (o->slices == 1) return NMLP_OK;
    if (m->config.intermediate % o->slices != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "slices",
                               "is %lld, which does not divide the intermediate size of %lld", (long long)o->slices,
                               (long long)m->config.intermediate);
    if (o->budget_ms > 0 || o->ranks)
        return nmlp_fail_field(err, NMLP_E_ARG, "slices",
                               "go with a `ratio`: other budgets do not know what a rank of each slice costs");
    if (m->config.n_experts > 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: slices of experts are not known", m->checkpoint.dir);
    if (m->config.features->fused)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: slices of fused projections are not known", m->checkpoint.dir);
    return NMLP_OK;
}

static nmlp_status check_modules(const nmlp_model *m, const nmlp_compress_options *o, nmlp_err *err) {
    if (!o->attention) return NMLP_OK;
    if (o->budget_ms > 0 || o->ranks || o->slices > 1)
        return nmlp_fail_field(err, NMLP_E_ARG, "modules",
                               "with attention go with a `ratio` and without slices: other budgets are of MLPs");
    if (nmlp_group_size(o->group) > 1)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "modules",
                               "with attention are compressed by one process, %d were started",
                               nmlp_group_size(o->group));
    if (m->config.features->fused)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "modules",
                               "cannot have attention: this %s model has q, k and v in one tensor", m->config.family);
    return NMLP_OK;
}

static nmlp_status check_options(const nmlp_model *m, const nmlp_compress_options *o, nmlp_err *err) {
    if (!o->ranks && o->budget_ms <= 0 && !(o->ratio > 0 && o->ratio < 1)) {
        nmlp_fail_field(err, NMLP_E_ARG, "ratio", "is %g; it must be above 0 and below 1", o->ratio);
        nmlp_fail_hint(err, "it is the fraction of parameters to remove; 0.2 keeps 80 %%");
        return NMLP_E_ARG;
    }
    NMLP_RETURN_IF_FAILED(check_counts(o, err));
    if (m->config.compressed)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: is compressed already; compress the dense checkpoint, or expand this one first",
                         m->checkpoint.dir);
    if (m->config.quantised) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: has quantised weights, which are not compressed further",
                  m->checkpoint.dir);
        nmlp_fail_hint(err, "compress the checkpoint that it was made from, then quantise; or expand this one first");
        return NMLP_E_UNSUPPORTED;
    }
    NMLP_RETURN_IF_FAILED(check_slices(m, o, err));
    if (m->config.n_experts > 0 && nmlp_group_size(o->group) > 1)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: models with experts are compressed by one process, %d were started", m->checkpoint.dir,
                         nmlp_group_size(o->group));
    NMLP_RETURN_IF_FAILED(check_modules(m, o, err));
    if (o->budget_ms > 0 && m->config.n_experts > 0)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "budget_ms",
                               "is for models without experts; this %s model takes a `ratio`", m->config.family);
    if (o->budget_ms > 0 && !o->adaptive)
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_ms",
                               "needs adaptive ranks (`allocation`): uniform ranks know no time");
    return NMLP_OK;
}

static double smaller(double a, double b) { return a < b ? a : b; }

/* No choice of ranks takes less: every matrix dense or of the lowest rank, gate and up apart or together. */
static double least_us(const struct job *j) {
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
static nmlp_status set_budget(struct job *j, nmlp_err *err) {
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

static nmlp_search search_of(const struct job *j) {
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
static nmlp_status check_ranks(const struct job *j, nmlp_err *err) {
    const nmlp_config *c = &j->model->config;
    nmlp_search search = search_of(j);
    bool some_tile_pays = true;
    for (int64_t l = 0; l < c->n_layers; l++)
        some_tile_pays &= nmlp_rank_break_even(j->blocks[l].rows[0], c->hidden) >= j->options->tile;
    if (j->options->ranks || (j->options->adaptive && some_tile_pays)) return NMLP_OK;
    return nmlp_search_uniform(&search, j->report->ranks, err);
}

static nmlp_status open_work(struct job *j, const char *out_dir, nmlp_err *err) {
    const nmlp_compress_options *o = j->options;
    nmlp_str work;
    nmlp_str_init(&work);
    nmlp_str_puts(&work, o->work_dir ? o->work_dir : out_dir);
    while (work.len > 1 && work.data[work.len - 1] == '/') work.data[--work.len] = '\0';
    if (!o->work_dir) nmlp_str_puts(&work, ".work");
    nmlp_status st = nmlp_str_status(&work, err);
    if (st == NMLP_OK && strncmp(nmlp_str_text(&work), out_dir, work.len) == 0 &&
        strspn(out_dir + work.len, "/") == strlen(out_dir + work.len))
        st = nmlp_fail_field(err, NMLP_E_ARG, "work_dir", "is %s; it must be another directory than the output",
                             o->work_dir);
    if (st == NMLP_OK && nmlp_group_leads(o->group))
        st = nmlp_dir_stage_open(&j->work, nmlp_str_text(&work), o->resume, err);
    if (st == NMLP_OK) st = nmlp_group_meet(o->group, err);
    if (st == NMLP_OK && !nmlp_group_leads(o->group)) st = nmlp_dir_stage_visit(&j->work, nmlp_str_text(&work), err);
    nmlp_str_fini(&work);
    return st;
}

static nmlp_status make_blocks(struct job *j, nmlp_err *err) {
    const nmlp_config *c = &j->model->config;
    int64_t n_modules = j->options->attention ? NMLP_MODULES : 1;
    j->n_blocks = n_modules * c->n_layers;
    j->blocks = nmlp_mem_new((size_t)j->n_blocks, sizeof *j->blocks, err);
    if (!j->blocks) return NMLP_E_NOMEM;
    for (int64_t b = 0; b < j->n_blocks; b++)
        j->blocks[b] = nmlp_block_of(c, (nmlp_module_kind)(b / c->n_layers), b % c->n_layers, j->options->slices);
    return NMLP_OK;
}

static nmlp_status open_job(struct job *j, const int32_t *ids, int64_t n_ids, const char *out_dir, nmlp_err *err) {
    const nmlp_compress_options *o = j->options;
    const nmlp_config *c = &j->model->config;
    NMLP_RETURN_IF_FAILED(check_options(j->model, o, err));
    if (out_dir) NMLP_RETURN_IF_FAILED(nmlp_target_check(out_dir, j->model->checkpoint.dir, err));
    NMLP_RETURN_IF_FAILED(make_blocks(j, err));
    NMLP_RETURN_IF_FAILED(set_budget(j, err));
    if (out_dir) NMLP_RETURN_IF_FAILED(check_ranks(j, err));
    int64_t context = o->context < c->max_positions ? o->context : c->max_positions;
    NMLP_RETURN_IF_FAILED(
        nmlp_calib_windows_cut(&j->windows, ids, n_ids, context, o->calib_tokens, o->heldout_tokens, err));
    if (j->windows.n_heldout == 0 && (o->adaptive || o->refit)) {
        nmlp_fail_field(err, NMLP_E_ARG, "heldout_tokens",
                        "leaves no held-out tokens, on which adaptive ranks and the refit are chosen");
        nmlp_fail_hint(
            err,
            "give a longer `calibration` text and `heldout_tokens` above 0, or uniform `allocation` without `refit`");
        return NMLP_E_ARG;
    }
    j->report->calib_tokens = nmlp_calib_windows_calib_tokens(&j->windows);
    j->report->heldout_tokens = nmlp_calib_windows_heldout_tokens(&j->windows);
    NMLP_RETURN_IF_FAILED(nmlp_window_share_init(&j->share, o->group, &j->windows, err));
    if (nmlp_group_leads(o->group))
        NMLP_RETURN_IF_FAILED(nmlp_compress_fingerprint_of(&j->fingerprint, j->engine, &j->windows, o, err));
    NMLP_RETURN_IF_FAILED(nmlp_group_broadcast(o->group, &j->fingerprint, sizeof j->fingerprint, err));
    j->factor_files = nmlp_mem_new((size_t)j->n_blocks, sizeof *j->factor_files, err);
    j->n_mlps = c->n_experts > 0 ? c->n_experts : 1;
    j->finished = nmlp_mem_new((size_t)(c->n_layers * (j->n_mlps + 1)), sizeof *j->finished, err);
    if (!j->factor_files || !j->finished) return NMLP_E_NOMEM;
    if (out_dir && nmlp_group_leads(o->group))
        NMLP_RETURN_IF_FAILED(nmlp_dir_stage_open(&j->output, out_dir, false, err));
    return open_work(j, out_dir ? out_dir : "", err);
}

/* Finished layers outlive every failure. */
static nmlp_status close_work(struct job *j, nmlp_status st, nmlp_err *err) {
    if (!nmlp_group_leads(j->options->group)) {
        nmlp_dir_stage_keep(&j->work);
        return st;
    }
    bool unfinished = st != NMLP_OK && nmlp_dir_stage_has_files(&j->work);
    if (unfinished && err && !err->hint[0])
        nmlp_fail_hint(err, "what is done is kept in %s; the same command with `resume` goes on from there",
                       j->work.temp_path);
    if (unfinished || (st == NMLP_OK && j->options->keep_work)) nmlp_dir_stage_keep(&j->work);
    if (st == NMLP_OK) st = nmlp_dir_stage_discard(&j->work, err);
    nmlp_dir_stage_abort(&j->work);
    nmlp_dir_stage_abort(&j->output);
    return st;
}

static nmlp_status close_job(struct job *j, nmlp_status st, nmlp_err *err) {
    int64_t n_finished = j->model->config.n_layers * (j->n_mlps + 1);
    for (int64_t b = 0; j->factor_files && b < j->n_blocks; b++) nmlp_factor_file_close(&j->factor_files[b]);
    for (int64_t i = 0; j->finished && i < n_finished; i++) nmlp_layer_file_close(&j->finished[i]);
    nmlp_mem_free(j->blocks);
    nmlp_mem_free(j->factor_files);
    nmlp_mem_free(j->finished);
    nmlp_heldout_destroy(&j->heldout);
    nmlp_window_share_fini(&j->share);
    nmlp_calib_windows_fini(&j->windows);
    if (st == NMLP_OK) st = nmlp_group_meet(j->options->group, err); /* nobody has files open that now go */
    st = close_work(j, st, err);
    nmlp_linalg_end(j->blas_threads);
    return st;
}

static nmlp_status choose_ranks(struct job *j, nmlp_rank_plan *plan, nmlp_err *err) {
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

static nmlp_status open_heldout(struct job *j, nmlp_err *err) {
    const struct effort *effort = effort_for(&j->model->config);
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

static nmlp_status find_ranks(struct job *j, nmlp_err *err) {
    nmlp_compress_report *r = j->report;
    nmlp_rank_plan plan;
    char path[PATH_MAX_BYTES];
    nmlp_work_state state;
    nmlp_work_tally tally = {0};
    memset(&plan, 0, sizeof plan);
    if (j->windows.n_heldout) NMLP_RETURN_IF_FAILED(open_heldout(j, err));
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, j->work.temp_path, "ranks", err));
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

/* The number of an expert in file names. */
static int64_t expert_of(const struct job *j, int64_t l, int64_t index) {
    return j->factor_files[l].experts ? index : NMLP_REFIT_ONLY;
}

/* NULL: it stays as it is. */
static const nmlp_layer_ranks *attention_ranks(const struct job *j, int64_t l) {
    int64_t b = j->model->config.n_layers + l;
    return b < j->n_blocks && !nmlp_layer_ranks_are_dense(&j->report->ranks[b]) ? &j->report->ranks[b] : NULL;
}

static nmlp_status finish_plain_attention(struct job *j, int64_t l, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_layer_attention made;
    const nmlp_layer *dense = &j->model->layers[l];
    const nmlp_layer_ranks *ranks = attention_ranks(j, l);
    const nmlp_factor_file *factors = &j->factor_files[j->model->config.n_layers + l];
    nmlp_layer_file file = {.ranks = *ranks, .error = NAN, .error_before = NAN};
    NMLP_RETURN_IF_FAILED(nmlp_refit_path(path, sizeof path, j->work.temp_path, l, NMLP_REFIT_ATTENTION, false, err));
    NMLP_RETURN_IF_FAILED(nmlp_layer_attention_build(&made, factors, dense, ranks, nmlp_engine_pool(j->engine), err));
    memcpy(file.factors, made.layer.attention, sizeof made.layer.attention);
    nmlp_status st =
        nmlp_layer_file_write(path, j->fingerprint.job, &file, NMLP_MODULE_ATTENTION, dense->attention, err);
    nmlp_layer_attention_fini(&made);
    nmlp_factor_file_release(factors);
    return st;
}

/* The factors as the first pass made them, as finished layers; each process writes some of them. */
static nmlp_status finish_plain(struct job *j, nmlp_err *err) {
    for (int64_t l = 0; l < j->report->n_layers; l++) {
        if (!nmlp_group_deals(j->options->group, l)) continue;
        nmlp_layer_mlps mlps;
        const nmlp_layer *dense = &j->model->layers[l];
        nmlp_status st = NMLP_OK;
        NMLP_RETURN_IF_FAILED(nmlp_layer_mlps_build(&mlps, &j->factor_files[l], dense, &j->report->ranks[l],
                                                    nmlp_engine_pool(j->engine), err));
        for (int64_t e = 0; e < mlps.n && st == NMLP_OK; e++) {
            char path[PATH_MAX_BYTES];
            const nmlp_mlp_desc *desc = &mlps.descs[e];
            nmlp_layer_file file = {.factors = {desc->gate, desc->up, desc->down}, .error = NAN, .error_before = NAN};
            st = nmlp_refit_path(path, sizeof path, j->work.temp_path, l, expert_of(j, l, e), false, err);
            if (st == NMLP_OK)
                st = nmlp_expert_ranks_of(&j->factor_files[l], &j->report->ranks[l], e, &file.ranks, err);
            if (st == NMLP_OK)
                st = nmlp_layer_file_write(path, j->fingerprint.job, &file, NMLP_MODULE_MLP,
                                           nmlp_layer_mlp_at(dense, e), err);
        }
        nmlp_layer_mlps_fini(&mlps);
        nmlp_factor_file_release(&j->factor_files[l]);
        NMLP_RETURN_IF_FAILED(st);
        if (attention_ranks(j, l)) NMLP_RETURN_IF_FAILED(finish_plain_attention(j, l, err));
    }
    return NMLP_OK;
}

static nmlp_status open_finished_file(struct job *j, int64_t l, int64_t index, bool refitted, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_work_state state;
    nmlp_layer_ranks ranks;
    bool attention = index == NMLP_REFIT_ATTENTION;
    const nmlp_layer *layer = &j->model->layers[l];
    nmlp_layer_file *file = attention ? finished_attention(j, l) : &j->finished[l * j->n_mlps + index];
    nmlp_layer_file_close(file);
    NMLP_RETURN_IF_FAILED(nmlp_refit_path(path, sizeof path, j->work.temp_path, l,
                                          attention ? index : expert_of(j, l, index), refitted, err));
    if (attention)
        ranks = *attention_ranks(j, l);
    else
        NMLP_RETURN_IF_FAILED(nmlp_expert_ranks_of(&j->factor_files[l], &j->report->ranks[l], index, &ranks, err));
    NMLP_RETURN_IF_FAILED(nmlp_layer_file_open(
        file, path, j->fingerprint.job, &ranks, j->options->slices, attention ? NMLP_MODULE_ATTENTION : NMLP_MODULE_MLP,
        attention ? layer->attention : nmlp_layer_mlp_at(layer, index), &state, err));
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_IO, "%s: was written a moment ago and cannot be read back", path);
}

static nmlp_status open_finished(struct job *j, bool refitted, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_group_meet(j->options->group, err));
    for (int64_t l = 0; l < j->report->n_layers; l++)
        for (int64_t e = 0; e < nmlp_factor_file_mlps(&j->factor_files[l]); e++)
            NMLP_RETURN_IF_FAILED(open_finished_file(j, l, e, refitted, err));
    for (int64_t l = 0; l < j->report->n_layers; l++)
        if (attention_ranks(j, l)) NMLP_RETURN_IF_FAILED(open_finished_file(j, l, NMLP_REFIT_ATTENTION, refitted, err));
    return NMLP_OK;
}

static bool finished_changes(const void *ctx, int64_t l) {
    (void)ctx;
    (void)l;
    return true;
}

static nmlp_status finished_install(void *ctx, int64_t l, nmlp_err *err) {
    struct job *j = ctx;
    int64_t n = nmlp_factor_file_mlps(&j->factor_files[l]);
    nmlp_mlp_desc *descs = nmlp_mem_new((size_t)n, sizeof *descs, err);
    if (!descs) return NMLP_E_NOMEM;
    for (int64_t e = 0; e < n; e++)
        descs[e] = nmlp_layer_file_mlp(&j->finished[l * j->n_mlps + e], nmlp_layer_mlp_at(&j->model->layers[l], e));
    nmlp_status st = nmlp_engine_set_mlp(j->engine, l, descs, err);
    nmlp_mem_free(descs);
    if (st != NMLP_OK || !attention_ranks(j, l)) return st;
    nmlp_layer finished = j->model->layers[l];
    nmlp_layer_file_factors(finished_attention(j, l), NMLP_MODULE_ATTENTION, j->model->layers[l].attention,
                            finished.attention);
    finished.attention_shares_basis = attention_ranks(j, l)->joint;
    return nmlp_engine_set_attention(j->engine, l, &finished, err);
}

static void finished_remove(void *ctx, int64_t l) {
    struct job *j = ctx;
    (void)nmlp_engine_set_mlp(j->engine, l, NULL, NULL);
    if (attention_ranks(j, l)) (void)nmlp_engine_set_attention(j->engine, l, NULL, NULL);
    for (int64_t e = 0; e < nmlp_factor_file_mlps(&j->factor_files[l]); e++) {
        const nmlp_file_map *map = &j->finished[l * j->n_mlps + e].map;
        nmlp_file_map_release(map->data, map->bytes);
    }
    nmlp_layer_release(&j->model->layers[l], &j->factor_files[l]);
}

static nmlp_status measure_finished(struct job *j, nmlp_loss *loss, nmlp_err *err) {
    nmlp_mlp_overrides in = {
        .ctx = j, .changes = finished_changes, .install = finished_install, .remove = finished_remove};
    return nmlp_heldout_measure_shared(&j->heldout, j->engine, j->windows.n_heldout, &in, loss, err);
}

/* The refit of all layers together must lower the held-out loss as well, or none of it is kept. */
static nmlp_status finish_layers(struct job *j, nmlp_err *err) {
    nmlp_compress_report *r = j->report;
    nmlp_refit_job refit = {.engine = j->engine,
                            .share = &j->share,
                            .blocks = j->blocks,
                            .n_blocks = j->n_blocks,
                            .factor_files = j->factor_files,
                            .ranks = r->ranks,
                            .slices = j->options->slices,
                            .refit_down = !nmlp_compress_is_large(&j->model->config),
                            .token_weights = j->options->token_weights,
                            .progress = j->options->progress,
                            .times = &r->times,
                            .work_dir = j->work.temp_path,
                            .fingerprint = j->fingerprint.job};
    nmlp_heldout_end_probes(&j->heldout);
    if (j->options->refit) {
        NMLP_RETURN_IF_FAILED(nmlp_refit_run(&refit, err));
        NMLP_RETURN_IF_FAILED(open_finished(j, true, err));
        NMLP_RETURN_IF_FAILED(measure_finished(j, &r->final, err));
        r->refit_kept = r->final.kl < r->factored.kl;
        if (r->refit_kept) return NMLP_OK;
        r->final = r->factored;
    }
    NMLP_RETURN_IF_FAILED(finish_plain(j, err));
    return open_finished(j, false, err);
}

/* A curve says where a matrix could have been cut: few enough points to live in config.json. */
static void fill_curve(nmlp_compress_report *r, int64_t at, const nmlp_nested *n) {
    for (int64_t k = 0; k < r->curve_points; k++) {
        int64_t rank = k * r->curve_step < n->full ? k * r->curve_step : n->full;
        r->curve[at * r->curve_points + k] = n->loss && n->loss[0] > 0 ? n->loss[rank] / n->loss[0] : 0;
    }
}

static nmlp_status new_curves(nmlp_compress_report *r, const nmlp_config *c, int64_t tile, nmlp_err *err) {
    int64_t full = 0;
    for (int64_t l = 0; l < c->n_layers; l++)
        full = nmlp_max(full, nmlp_min(c->hidden, nmlp_config_mlp_inner(c, l) / r->slices));
    int64_t tiles = (full + tile - 1) / tile;
    r->curve_step = tile * ((tiles + CURVE_POINTS_MAX - 2) / (CURVE_POINTS_MAX - 1));
    r->curve_points = 1 + (full + r->curve_step - 1) / r->curve_step;
    r->curve = nmlp_mem_new((size_t)(r->n_layers * NMLP_MLP_MATRICES * r->curve_points), sizeof *r->curve, err);
    return r->curve ? NMLP_OK : NMLP_E_NOMEM;
}

static double error_at(const nmlp_nested *n, int64_t rank) {
    return rank > 0 && n->loss[0] > 0 ? n->loss[rank] / n->loss[0] : 0;
}

static void fill_attention_errors(struct job *j) {
    nmlp_compress_report *r = j->report;
    for (int64_t l = 0; l < r->n_layers; l++) {
        const nmlp_layer_ranks *ranks = attention_ranks(j, l);
        int64_t b = r->n_layers + l;
        for (int i = 0; ranks && i < NMLP_ATTENTION_MATRICES; i++)
            r->attention_nmse[l * NMLP_ATTENTION_MATRICES + i] =
                error_at(&j->factor_files[b].nested[nmlp_block_entry(&j->blocks[b], ranks, i)], ranks->rank[i]);
    }
}

static void fill_errors(struct job *j) {
    nmlp_compress_report *r = j->report;
    if (r->attention_nmse) fill_attention_errors(j);
    for (int64_t l = 0; l < r->n_layers; l++) {
        const nmlp_layer_ranks *ranks = &r->ranks[l];
        for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
            bool joint = i != NMLP_MLP_DOWN && (ranks->joint || j->factor_files[l].nested[i].rank == 0);
            const nmlp_nested *n = &j->factor_files[l].nested[joint ? NMLP_NESTED_JOINT : i];
            r->nmse[l * NMLP_MLP_MATRICES + i] = error_at(n, ranks->rank[i]);
            fill_curve(r, l * NMLP_MLP_MATRICES + i, n);
        }
        /* The last expert's is that of the layer with all of them refitted. */
        const nmlp_layer_file *last = &j->finished[l * j->n_mlps + nmlp_factor_file_mlps(&j->factor_files[l]) - 1];
        r->layer_error[l] = last->error;
        r->layer_error_before[l] = last->error_before;
    }
}

static nmlp_status write_out(struct job *j, nmlp_err *err) {
    nmlp_compress_report *r = j->report;
    nmlp_model_size before = nmlp_model_measure(j->model);
    nmlp_compressed_size after;
    nmlp_str text, card;
    nmlp_str_init(&text);
    nmlp_str_init(&card);
    r->params_before = before.params;
    r->mlp_params_before = before.mlp_params;
    r->bytes_before = before.bytes;
    r->mlp_params_after = 0;
    for (int64_t l = 0; l < r->n_layers; l++)
        for (int64_t e = 0; e < nmlp_factor_file_mlps(&j->factor_files[l]); e++)
            r->mlp_params_after += r->slices * nmlp_block_params(&j->blocks[l], &j->finished[l * j->n_mlps + e].ranks);
    r->attention_params_before = r->attention_params_after = before.attention_params;
    for (int64_t b = r->n_layers; b < j->n_blocks; b++)
        r->attention_params_after +=
            nmlp_block_params(&j->blocks[b], &r->ranks[b]) - nmlp_block_params(&j->blocks[b], NULL);
    nmlp_compress_record_write(j->options, r, &j->model->config, j->finished, &text);
    nmlp_compress_card_write(j->options, r, j->model->checkpoint.dir, &card);
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_str_status(&card, err);
    if (st == NMLP_OK)
        st = nmlp_compressed_write(j->model, j->finished, finished_attention(j, 0), j->options->slices, &j->output,
                                   nmlp_str_text(&text), nmlp_str_text(&card), j->options->progress, &after, err);
    nmlp_str_fini(&text);
    nmlp_str_fini(&card);
    if (st != NMLP_OK) return st;
    r->params_after = after.params;
    r->bytes_after = after.bytes;
    return NMLP_OK;
}

static nmlp_status new_report(nmlp_compress_report *r, int64_t n_layers, bool attention, nmlp_err *err) {
    *r = (nmlp_compress_report){.n_layers = n_layers, .n_blocks = (attention ? NMLP_MODULES : 1) * n_layers};
    r->ranks = nmlp_mem_new((size_t)r->n_blocks, sizeof *r->ranks, err);
    if (attention) {
        size_t n = (size_t)(n_layers * NMLP_ATTENTION_MATRICES);
        r->attention_nmse = nmlp_mem_new(n, sizeof *r->attention_nmse, err);
        if (!r->attention_nmse) return NMLP_E_NOMEM;
    }
    r->nmse = nmlp_mem_new((size_t)(n_layers * NMLP_MLP_MATRICES), sizeof *r->nmse, err);
    r->layer_error = nmlp_mem_new((size_t)n_layers, sizeof *r->layer_error, err);
    r->layer_error_before = nmlp_mem_new((size_t)n_layers, sizeof *r->layer_error_before, err);
    return r->ranks && r->nmse && r->layer_error && r->layer_error_before ? NMLP_OK : NMLP_E_NOMEM;
}

/* Choices left to this program, the job's files, and the factors of every layer. */
static nmlp_status begin(struct job *j, const int32_t *ids, int64_t n_ids, const char *out_dir, nmlp_err *err) {
    const struct effort *effort = effort_for(&j->model->config);
    nmlp_compress_options *o = &j->chosen;
    if (o->rounds == -1) o->rounds = effort->rounds;
    if (o->heldout_tokens == -1) o->heldout_tokens = effort->heldout_tokens;
    /* Bases of gate and up apart cost a large model as much again as everything else, and rarely win. */
    if (o->joint == NMLP_JOINT_AUTO && o->adaptive && nmlp_compress_is_large(&j->model->config))
        o->joint = NMLP_JOINT_ALWAYS;
    j->options = o;
    NMLP_RETURN_IF_FAILED(new_report(j->report, j->model->config.n_layers, o->attention, err));
    j->report->slices = o->slices;
    nmlp_compress_times_stage(&j->report->times, NMLP_COMPRESS_STAGE_STATISTICS);
    NMLP_RETURN_IF_FAILED(open_job(j, ids, n_ids, out_dir, err));
    nmlp_factor_pass pass = {.engine = j->engine,
                             .share = &j->share,
                             .blocks = j->blocks,
                             .n_blocks = j->n_blocks,
                             .options = o,
                             .work_dir = j->work.temp_path,
                             .fingerprint = j->fingerprint.statistics,
                             .times = &j->report->times};
    return nmlp_factor_pass_run(&pass, j->factor_files, err);
}

nmlp_status nmlp_compress_run(nmlp_engine *engine, const int32_t *ids, int64_t n_ids, const char *out_dir,
                              const nmlp_compress_options *options, nmlp_compress_report *report, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_linalg_load(nmlp_pool_threads(nmlp_engine_pool(engine)), err));
    struct job j = {.engine = engine,
                    .model = nmlp_engine_model(engine),
                    .chosen = *options,
                    .report = report,
                    .blas_threads = nmlp_linalg_begin()};
    nmlp_status st = NMLP_OK;
    j.options = &j.chosen;
    *report = (nmlp_compress_report){0};
    NMLP_TRY(begin(&j, ids, n_ids, out_dir, err));
    nmlp_compress_times_stage(&report->times, NMLP_COMPRESS_STAGE_RANKS);
    NMLP_TRY(find_ranks(&j, err));
    nmlp_compress_times_stage(&report->times, NMLP_COMPRESS_STAGE_REFIT);
    NMLP_TRY(finish_layers(&j, err));
    nmlp_compress_times_stage(&report->times, NMLP_COMPRESS_STAGE_WRITE);
    NMLP_TRY(new_curves(report, &j.model->config, j.options->tile, err));
    fill_errors(&j);
    nmlp_compress_times_enter(&report->times, NMLP_COMPRESS_WORK_FILES);
    if (nmlp_group_leads(options->group)) NMLP_TRY(write_out(&j, err));
    nmlp_compress_times_enter(&report->times, NMLP_COMPRESS_WORK_OTHER);
out:
    st = close_job(&j, st, err);
    if (st != NMLP_OK) nmlp_compress_report_fini(report);
    return st;
}

static nmlp_status survey_model(struct job *j, nmlp_loss_survey *survey, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_work_state state;
    nmlp_work_tally tally = {0};
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, j->work.temp_path, "survey", err));
    NMLP_RETURN_IF_FAILED(
        nmlp_loss_survey_read(path, j->fingerprint.search, j->model->config.n_layers, survey, &state, err));
    tally.n[state]++;
    nmlp_work_tally_note(&tally, "survey", j->options->progress);
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(open_heldout(j, err));
    nmlp_search search = search_of(j);
    NMLP_RETURN_IF_FAILED(nmlp_loss_survey_make(survey, &search, err));
    return nmlp_loss_survey_write(path, j->fingerprint.search, survey, err);
}

nmlp_status nmlp_compress_survey(nmlp_engine *engine, const int32_t *ids, int64_t n_ids,
                                 const nmlp_compress_options *options, nmlp_loss_survey *survey, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_linalg_load(nmlp_pool_threads(nmlp_engine_pool(engine)), err));
    nmlp_compress_report report = {0};
    struct job j = {.engine = engine,
                    .model = nmlp_engine_model(engine),
                    .chosen = *options,
                    .report = &report,
                    .blas_threads = nmlp_linalg_begin()};
    nmlp_status st = NMLP_OK;
    j.options = &j.chosen;
    *survey = (nmlp_loss_survey){0};
    NMLP_TRY(begin(&j, ids, n_ids, NULL, err));
    NMLP_TRY(survey_model(&j, survey, err));
out:
    st = close_job(&j, st, err);
    nmlp_compress_report_fini(&report);
    if (st != NMLP_OK) nmlp_loss_survey_fini(survey);
    return st;
}
