#include "compress/quantize/quantize.h"

#include <stdio.h>
#include <string.h>

#include "base/hash64.h"
#include "base/mem.h"
#include "checkpoint/target.h"
#include "compress/compress.h"
#include "compress/job_folders.h"
#include "compress/quantize/quant_budget.h"
#include "compress/quantize/quant_file.h"
#include "compress/quantize/quant_pass.h"
#include "compress/quantize/quant_write.h"
#include "compress/work.h"
#include "linalg/linalg.h"
#include "model/fingerprint.h"
#include "neuronmlp/version.h"

enum {
    HELDOUT_TOKENS = 8192,
    HELDOUT_TOKENS_LARGE = 2048,
    SCORE_STEP_LARGE = 4,
    PROBE_TOKENS = 2048,
    PATH_MAX_BYTES = 4096
};

nmlp_quantize_options nmlp_quantize_defaults(void) {
    return (nmlp_quantize_options){.body = {.dtype = NMLP_DTYPE_Q8},
                                   .head = {.dtype = NMLP_DTYPE_Q8},
                                   .calib_tokens = 32768,
                                   .heldout_tokens = -1,
                                   .context = 512};
}

void nmlp_quantize_report_fini(nmlp_quantize_report *r) {
    nmlp_mem_free(r->formats);
    *r = (nmlp_quantize_report){0};
}

struct job {
    nmlp_engine *engine;
    const nmlp_model *model;
    const nmlp_quantize_options *options;
    nmlp_quantize_report *report;
    nmlp_calib_windows windows;
    nmlp_quant_share share; /* of the windows */
    nmlp_job_folders folders;
    nmlp_quant_format *formats; /* [L, NMLP_QUANT_MATRICES], the report's */
    nmlp_quant_format head;
    nmlp_quant_model made;
    nmlp_heldout heldout;
    float *rows; /* [own tokens,H] */
    uint64_t fingerprint;
    int blas_threads;
};

static nmlp_status check_format(const char *field, const nmlp_quant_format *f, nmlp_err *err) {
    if (f->dtype != NMLP_DTYPE_Q4 || f->group == 32 || f->group == 64) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, field, "has groups of %d; they must be of 32 or 64", f->group);
}

static nmlp_status check_options(const nmlp_model *m, const nmlp_quantize_options *o, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_check_count("context", o->context, 2, INT64_C(1) << 31, err));
    NMLP_RETURN_IF_FAILED(nmlp_check_count("calibration_tokens", o->calib_tokens, 1, INT64_C(1) << 40, err));
    NMLP_RETURN_IF_FAILED(nmlp_check_count("heldout_tokens", o->heldout_tokens, -1, INT64_C(1) << 40, err));
    NMLP_RETURN_IF_FAILED(check_format("group", &o->body, err));
    NMLP_RETURN_IF_FAILED(check_format("head", &o->head, err));
    if (m->config.slices > 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: factors of slices are not quantised", m->checkpoint.dir);
    if (m->config.features->fused && o->budget_bytes > 0)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "budget_bytes",
                               "is for models whose matrices are tensors of their own; this %s model takes a format",
                               m->config.family);
    if (m->config.n_experts > 0 && nmlp_group_size(o->group) > 1)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: models with experts are quantised by one process, %d were started", m->checkpoint.dir,
                         nmlp_group_size(o->group));
    if (!m->config.quantised) return NMLP_OK;
    nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: has quantised weights already", m->checkpoint.dir);
    nmlp_fail_hint(err, "quantise the checkpoint that it was made from");
    return NMLP_E_UNSUPPORTED;
}

/* Of everything that a work file depends on; layers below too, since their rounding is what a layer sees. */
static nmlp_status hash_job(uint64_t *out, const struct job *j, nmlp_err *err) {
    const nmlp_calib_windows *w = &j->windows;
    int64_t n = j->model->config.n_layers * NMLP_QUANT_MATRICES;
    char text[256];
    int len = snprintf(text, sizeof text, "quantize 5 %s %d %d %d %lld %lld %lld %s %s", NMLP_VERSION_STRING,
                       (int)j->head.dtype, j->head.group, j->head.zeros, (long long)w->context, (long long)w->n_calib,
                       (long long)w->n_heldout, nmlp_engine_isa(j->engine), nmlp_linalg_core());
    uint64_t hash = nmlp_hash64(text, (size_t)len, 0);
    for (int64_t i = 0; i < n; i++) {
        int64_t format[] = {(int64_t)j->formats[i].dtype, j->formats[i].group, j->formats[i].zeros};
        hash = nmlp_hash64(format, sizeof format, hash);
    }
    hash = nmlp_hash64(w->ids, (size_t)nmlp_calib_windows_tokens(w) * sizeof *w->ids, hash);
    *out = hash;
    return nmlp_model_fingerprint(out, j->model, nmlp_engine_pool(j->engine), err);
}

/* The first process reads the weights for it. */
static nmlp_status fingerprint_of(uint64_t *out, const struct job *j, nmlp_err *err) {
    if (nmlp_group_leads(j->options->group)) NMLP_RETURN_IF_FAILED(hash_job(out, j, err));
    return nmlp_group_broadcast(j->options->group, out, sizeof *out, err);
}

static nmlp_status open_job(struct job *j, const int32_t *ids, int64_t n_ids, const char *out_dir, nmlp_err *err) {
    const nmlp_quantize_options *o = j->options;
    const nmlp_config *c = &j->model->config;
    int64_t n = c->n_layers * NMLP_QUANT_MATRICES;
    int64_t heldout = o->heldout_tokens;
    NMLP_RETURN_IF_FAILED(check_options(j->model, o, err));
    NMLP_RETURN_IF_FAILED(nmlp_target_check(out_dir, j->model->checkpoint.dir, err));
    if (heldout < 0) heldout = nmlp_compress_is_large(c) ? HELDOUT_TOKENS_LARGE : HELDOUT_TOKENS;
    int64_t context = o->context < c->max_positions ? o->context : c->max_positions;
    NMLP_RETURN_IF_FAILED(nmlp_calib_windows_cut(&j->windows, ids, n_ids, context, o->calib_tokens, heldout, err));
    NMLP_RETURN_IF_FAILED(nmlp_quant_share_init(&j->share, o->group, &j->windows, err));
    j->formats = j->report->formats = nmlp_mem_new((size_t)n, sizeof *j->formats, err);
    j->report->n_layers = c->n_layers;
    j->rows = nmlp_mem_new((size_t)(nmlp_calib_windows_tokens(&j->share.own) * c->hidden), sizeof *j->rows, err);
    if (!j->formats || !j->rows) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < n; i++) j->formats[i] = o->formats ? o->formats[i] : o->body;
    j->head = o->head;
    if (o->budget_bytes > 0 && j->windows.n_heldout == 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "heldout_tokens",
                               "leaves no held-out tokens, on which formats are chosen");
    NMLP_RETURN_IF_FAILED(nmlp_quant_model_init(&j->made, j->model, err));
    return nmlp_job_folders_open(&j->folders, out_dir, o->work_dir, o->resume, err);
}

/* Formats that fit the budget: those that an interrupted run chose, or new ones. */
static nmlp_status choose_formats(struct job *j, nmlp_err *err) {
    const nmlp_quantize_options *o = j->options;
    int64_t n = j->model->config.n_layers * NMLP_QUANT_MATRICES;
    char path[PATH_MAX_BYTES];
    nmlp_work_state state;
    uint64_t fingerprint = 0;
    NMLP_RETURN_IF_FAILED(fingerprint_of(&fingerprint, j, err));
    fingerprint = nmlp_hash64(&o->budget_bytes, sizeof o->budget_bytes, fingerprint);
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, j->folders.work.temp_path, "formats", err));
    NMLP_RETURN_IF_FAILED(nmlp_quant_formats_read(path, fingerprint, j->formats, n, &j->head, &state, err));
    NMLP_RETURN_IF_FAILED(nmlp_work_agree(o->group, state, j->folders.work.temp_path, err));
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    nmlp_quant_budget budget = {
        .engine = j->engine, .heldout = &j->heldout, .bytes = o->budget_bytes, .progress = o->progress};
    NMLP_RETURN_IF_FAILED(nmlp_quant_budget_choose(&budget, j->formats, &j->head, err));
    nmlp_heldout_end_probes(&j->heldout);
    if (!nmlp_group_leads(o->group)) return NMLP_OK;
    return nmlp_quant_formats_write(path, fingerprint, j->formats, n, &j->head, err);
}

static nmlp_status make(struct job *j, nmlp_err *err) {
    nmlp_quant_pass pass = {.engine = j->engine,
                            .share = &j->share,
                            .formats = j->formats,
                            .head = j->head,
                            .work_dir = j->folders.work.temp_path,
                            .fingerprint = j->fingerprint,
                            .progress = j->options->progress,
                            .made = &j->made,
                            .rows = j->rows};
    return nmlp_quant_pass_run(&pass, err);
}

/* The quantised model's loss from the hidden states that the pass left. */
static nmlp_status measure(struct job *j, nmlp_err *err) {
    nmlp_quantize_report *r = j->report;
    nmlp_pool *pool = nmlp_engine_pool(j->engine);
    const nmlp_kernels *kernels;
    nmlp_linear *head = NULL;
    float *wide = NULL;
    nmlp_view view = j->made.lm_head, no_bias = {0};
    nmlp_status st = NMLP_OK;
    if (j->windows.n_heldout == 0) return NMLP_OK;
    if (nmlp_dtype_is_quantised(view.dtype)) {
        wide = nmlp_quant_widen(&view, pool, err);
        if (!wide) return NMLP_E_NOMEM;
        view = nmlp_view_2d(wide, NMLP_DTYPE_F32, view.shape[0], view.shape[1]);
        NMLP_TRY(nmlp_kernels_select(&kernels, nmlp_cpu_get(), nmlp_engine_isa(j->engine), err));
        NMLP_TRY(nmlp_linear_create(&head, kernels, &view, &no_bias, pool, err));
    }
    const float *rows = j->rows + nmlp_calib_windows_calib_tokens(&j->share.own) * j->model->config.hidden;
    NMLP_TRY(nmlp_heldout_score(&j->heldout, j->engine, rows, head, &r->after, err));
    r->before = j->heldout.dense;
    r->measured = true;
out:
    nmlp_linear_destroy(head);
    nmlp_mem_free(wide);
    return st;
}

static nmlp_status close_job(struct job *j, nmlp_status st, nmlp_err *err) {
    nmlp_quant_model_fini(&j->made);
    nmlp_heldout_destroy(&j->heldout);
    nmlp_quant_share_fini(&j->share);
    nmlp_calib_windows_fini(&j->windows);
    nmlp_mem_free(j->rows);
    if (st == NMLP_OK) st = nmlp_group_meet(j->options->group, err); /* nobody has files open that now go */
    st = nmlp_job_folders_close(&j->folders, false, st, err);
    nmlp_linalg_end(j->blas_threads);
    return st;
}

nmlp_status nmlp_quantize_run(nmlp_engine *engine, const int32_t *ids, int64_t n_ids, const char *out_dir,
                              const nmlp_quantize_options *options, nmlp_quantize_report *report, nmlp_err *err) {
    *report = (nmlp_quantize_report){0};
    NMLP_RETURN_IF_FAILED(nmlp_linalg_load(nmlp_pool_threads(nmlp_engine_pool(engine)), err));
    struct job j = {.engine = engine,
                    .model = nmlp_engine_model(engine),
                    .options = options,
                    .report = report,
                    .folders = {.group = options->group},
                    .blas_threads = nmlp_linalg_begin()};
    nmlp_status st = NMLP_OK;
    NMLP_TRY(open_job(&j, ids, n_ids, out_dir, err));
    report->calib_tokens = nmlp_calib_windows_calib_tokens(&j.windows);
    report->heldout_tokens = nmlp_calib_windows_heldout_tokens(&j.windows);
    if (j.windows.n_heldout) {
        int64_t n_probe = (PROBE_TOKENS + j.windows.context - 1) / j.windows.context;
        nmlp_heldout_options heldout = {.n_probe = options->budget_bytes > 0 ? n_probe : 0,
                                        .step = nmlp_compress_is_large(&j.model->config) ? SCORE_STEP_LARGE : 1,
                                        .group = options->group};
        NMLP_TRY(nmlp_heldout_create(&j.heldout, engine, &j.windows, &heldout, err));
    }
    if (options->budget_bytes > 0) NMLP_TRY(choose_formats(&j, err));
    report->head = j.head;
    NMLP_TRY(fingerprint_of(&j.fingerprint, &j, err));
    NMLP_TRY(make(&j, err));
    NMLP_TRY(measure(&j, err));
    nmlp_model_size before = nmlp_model_measure(j.model);
    report->params = before.params;
    report->bytes_before = before.bytes;
    if (nmlp_group_leads(options->group))
        NMLP_TRY(nmlp_quant_write(j.model, &j.made, &j.folders.output, options->progress, report, err));
out:
    st = close_job(&j, st, err);
    if (st != NMLP_OK) nmlp_quantize_report_fini(report);
    return st;
}
