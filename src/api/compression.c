/* nmlp_compress_model: the compression job with model, text and engine taken care of. */
#include "neuronmlp/compression.h"

#include <math.h>

#include "api/options.h"
#include "base/pool.h"
#include "compress/calibrate/calib_text.h"
#include "compress/compress.h"

struct job {
    nmlp_compression_options options;
    nmlp_pool *pool;
    nmlp_model model;
    nmlp_engine *engine;
    nmlp_ids ids;
    nmlp_str calibration_name;
    nmlp_progress progress;
    nmlp_compress_report report;
};

static nmlp_compression_options defaults(void) {
    nmlp_compress_options o = nmlp_compress_defaults();
    return (nmlp_compression_options){.struct_bytes = sizeof(nmlp_compression_options),
                                      .ratio = 0.2,
                                      .uniform = !o.adaptive,
                                      .refit = o.refit,
                                      .calibration_tokens = o.calib_tokens,
                                      .heldout_tokens = o.heldout_tokens,
                                      .context = o.context};
}

void nmlp_compression_options_init(nmlp_compression_options *options, size_t struct_bytes) {
    nmlp_compression_options ours = defaults();
    nmlp_options_give(options, struct_bytes, &ours, sizeof ours);
}

void nmlp_compression_result_init(nmlp_compression_result *result, size_t struct_bytes) {
    nmlp_compression_result ours = {0};
    nmlp_options_give(result, struct_bytes, &ours, sizeof ours);
}

static bool pass_progress_on(void *ctx, const char *stage, double done, double total, const char *unit) {
    const nmlp_compression_options *o = ctx;
    return !o->on_progress || o->on_progress(o->progress_ctx, stage, done, total, unit) == 0;
}

static nmlp_status open_job(struct job *job, const char *model_dir, nmlp_err *err) {
    const nmlp_compression_options *o = &job->options;
    job->progress = (nmlp_progress){.update = pass_progress_on, .ctx = &job->options};
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&job->model, model_dir, err));
    NMLP_RETURN_IF_FAILED(nmlp_pool_create(&job->pool, o->n_threads, err));
    nmlp_engine_options engine = {.isa = o->isa, .pool = job->pool, .progress = &job->progress};
    NMLP_RETURN_IF_FAILED(nmlp_engine_create(&job->engine, &job->model, &engine, err));
    return nmlp_calib_text_read(model_dir, o->calibration, &job->ids, &job->calibration_name, err);
}

static nmlp_status run_job(struct job *job, const char *out_dir, nmlp_err *err) {
    const nmlp_compression_options *o = &job->options;
    nmlp_compress_options internal = nmlp_compress_defaults();
    internal.ratio = o->ratio;
    internal.tile = o->tile > 0 ? o->tile : nmlp_compress_cpu_tile(&job->model.config);
    internal.adaptive = !o->uniform;
    internal.refit = o->refit;
    internal.calib_tokens = o->calibration_tokens;
    internal.heldout_tokens = o->heldout_tokens;
    internal.context = o->context;
    internal.resume = o->resume;
    internal.calib_name = nmlp_str_text(&job->calibration_name);
    internal.progress = &job->progress;
    return nmlp_compress_run(job->engine, job->ids.data, (int64_t)job->ids.len, out_dir, &internal, &job->report, err);
}

static void close_job(struct job *job) {
    nmlp_compress_report_fini(&job->report);
    nmlp_str_fini(&job->calibration_name);
    nmlp_ids_fini(&job->ids);
    nmlp_engine_destroy(job->engine);
    nmlp_pool_destroy(job->pool);
    nmlp_model_close(&job->model);
}

static void give_result(nmlp_compression_result *result, const nmlp_compress_report *r) {
    nmlp_compression_result ours = {.params_before = r->params_before,
                                    .params_after = r->params_after,
                                    .mlp_params_before = r->mlp_params_before,
                                    .mlp_params_after = r->mlp_params_after,
                                    .bytes_before = r->bytes_before,
                                    .bytes_after = r->bytes_after,
                                    .calibration_tokens = r->calib_tokens,
                                    .heldout_tokens = r->heldout_tokens,
                                    .heldout_ppl_before = r->heldout_measured ? exp(r->dense.nll) : NAN,
                                    .heldout_ppl_after = r->heldout_measured ? exp(r->final.nll) : NAN};
    nmlp_options_give(result, result->struct_bytes, &ours, sizeof ours);
}

nmlp_status nmlp_compress_model(const char *model_dir, const char *out_dir, const nmlp_compression_options *options,
                                nmlp_compression_result *result, nmlp_err *err) {
    struct job job = {.options = defaults()};
    nmlp_compression_result ignored;
    nmlp_status st = NMLP_OK;
    if (!model_dir || !out_dir)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_compress_model needs the directories of both models");
    nmlp_ids_init(&job.ids);
    nmlp_str_init(&job.calibration_name);
    NMLP_TRY(nmlp_options_take(&ignored, sizeof ignored, result, "nmlp_compression_result", err));
    NMLP_TRY(nmlp_options_take(&job.options, sizeof job.options, options, "nmlp_compression_options", err));
    NMLP_TRY(open_job(&job, model_dir, err));
    NMLP_TRY(run_job(&job, out_dir, err));
    if (result) give_result(result, &job.report);
out:
    close_job(&job);
    return st;
}
