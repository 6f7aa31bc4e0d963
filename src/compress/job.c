/* A compression from beginning to end. */
#include <string.h>

#include "base/mem.h"
#include "checkpoint/target.h"
#include "compress/factor/factor_pass.h"
#include "compress/job_internal.h"
#include "linalg/linalg.h"

static nmlp_status make_blocks(nmlp_compress_job *j, nmlp_err *err) {
    const nmlp_config *c = &j->model->config;
    int64_t n_modules = j->options->attention ? NMLP_MODULES : 1;
    j->n_blocks = n_modules * c->n_layers;
    j->blocks = nmlp_mem_new((size_t)j->n_blocks, sizeof *j->blocks, err);
    if (!j->blocks) return NMLP_E_NOMEM;
    for (int64_t b = 0; b < j->n_blocks; b++)
        j->blocks[b] = nmlp_block_of(c, (nmlp_module_kind)(b / c->n_layers), b % c->n_layers, j->options->slices);
    return NMLP_OK;
}

static nmlp_status open_job(nmlp_compress_job *j, const int32_t *ids, int64_t n_ids, const char *out_dir,
                            nmlp_err *err) {
    const nmlp_compress_options *o = j->options;
    const nmlp_config *c = &j->model->config;
    NMLP_RETURN_IF_FAILED(nmlp_compress_options_check(j->model, o, err));
    if (out_dir) NMLP_RETURN_IF_FAILED(nmlp_target_check(out_dir, j->model->checkpoint.dir, err));
    NMLP_RETURN_IF_FAILED(make_blocks(j, err));
    NMLP_RETURN_IF_FAILED(nmlp_compress_budget_set(j, err));
    if (out_dir) NMLP_RETURN_IF_FAILED(nmlp_compress_ranks_check(j, err));
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
    return nmlp_job_folders_open(&j->folders, out_dir, o->work_dir, o->resume, err);
}

static nmlp_status close_job(nmlp_compress_job *j, nmlp_status st, nmlp_err *err) {
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
    st = nmlp_job_folders_close(&j->folders, j->options->keep_work, st, err);
    nmlp_linalg_end(j->blas_threads);
    return st;
}

/* Choices left to this program, the job's files, and the factors of every layer. */
static nmlp_status begin(nmlp_compress_job *j, const int32_t *ids, int64_t n_ids, const char *out_dir, nmlp_err *err) {
    const nmlp_compress_effort *effort = nmlp_compress_effort_of(&j->model->config);
    nmlp_compress_options *o = &j->chosen;
    if (o->rounds == -1) o->rounds = effort->rounds;
    if (o->heldout_tokens == -1) o->heldout_tokens = effort->heldout_tokens;
    /* Bases of gate and up apart cost a large model as much again as everything else, and rarely win. */
    if (o->joint == NMLP_JOINT_AUTO && o->adaptive && nmlp_compress_is_large(&j->model->config))
        o->joint = NMLP_JOINT_ALWAYS;
    j->options = o;
    NMLP_RETURN_IF_FAILED(nmlp_compress_report_init(j->report, j->model->config.n_layers, o->attention, err));
    j->report->slices = o->slices;
    nmlp_compress_times_stage(&j->report->times, NMLP_COMPRESS_STAGE_STATISTICS);
    NMLP_RETURN_IF_FAILED(open_job(j, ids, n_ids, out_dir, err));
    nmlp_factor_pass pass = {.engine = j->engine,
                             .share = &j->share,
                             .blocks = j->blocks,
                             .n_blocks = j->n_blocks,
                             .options = o,
                             .work_dir = j->folders.work.temp_path,
                             .fingerprint = j->fingerprint.statistics,
                             .times = &j->report->times};
    return nmlp_factor_pass_run(&pass, j->factor_files, err);
}

nmlp_status nmlp_compress_run(nmlp_engine *engine, const int32_t *ids, int64_t n_ids, const char *out_dir,
                              const nmlp_compress_options *options, nmlp_compress_report *report, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_linalg_load(nmlp_pool_threads(nmlp_engine_pool(engine)), err));
    nmlp_compress_job j = {.engine = engine,
                           .model = nmlp_engine_model(engine),
                           .chosen = *options,
                           .report = report,
                           .folders = {.group = options->group},
                           .blas_threads = nmlp_linalg_begin()};
    nmlp_status st = NMLP_OK;
    j.options = &j.chosen;
    *report = (nmlp_compress_report){0};
    NMLP_TRY(begin(&j, ids, n_ids, out_dir, err));
    nmlp_compress_times_stage(&report->times, NMLP_COMPRESS_STAGE_RANKS);
    NMLP_TRY(nmlp_compress_ranks_find(&j, err));
    nmlp_compress_times_stage(&report->times, NMLP_COMPRESS_STAGE_REFIT);
    NMLP_TRY(nmlp_compress_finish(&j, err));
    nmlp_compress_times_stage(&report->times, NMLP_COMPRESS_STAGE_WRITE);
    NMLP_TRY(nmlp_compress_report_fill(&j, err));
    nmlp_compress_times_enter(&report->times, NMLP_COMPRESS_WORK_FILES);
    if (nmlp_group_leads(options->group)) NMLP_TRY(nmlp_compress_write(&j, err));
    nmlp_compress_times_enter(&report->times, NMLP_COMPRESS_WORK_OTHER);
out:
    st = close_job(&j, st, err);
    if (st != NMLP_OK) nmlp_compress_report_fini(report);
    return st;
}

nmlp_status nmlp_compress_survey(nmlp_engine *engine, const int32_t *ids, int64_t n_ids,
                                 const nmlp_compress_options *options, nmlp_loss_survey *survey, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_linalg_load(nmlp_pool_threads(nmlp_engine_pool(engine)), err));
    nmlp_compress_report report = {0};
    nmlp_compress_job j = {.engine = engine,
                           .model = nmlp_engine_model(engine),
                           .chosen = *options,
                           .report = &report,
                           .folders = {.group = options->group},
                           .blas_threads = nmlp_linalg_begin()};
    nmlp_status st = NMLP_OK;
    j.options = &j.chosen;
    *survey = (nmlp_loss_survey){0};
    NMLP_TRY(begin(&j, ids, n_ids, NULL, err));
    NMLP_TRY(nmlp_compress_survey_make(&j, survey, err));
out:
    st = close_job(&j, st, err);
    nmlp_compress_report_fini(&report);
    if (st != NMLP_OK) nmlp_loss_survey_fini(survey);
    return st;
}
