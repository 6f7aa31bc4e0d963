/* nmlp_optimize_model: options and results between a caller and the service. */
#include "neuronmlp/optimization.h"

#include <math.h>
#include <stdio.h>

#include "api/options.h"
#include "service/optimization.h"

static nmlp_optimize_options defaults(void) {
    nmlp_optimization_request r = nmlp_optimization_defaults();
    return (nmlp_optimize_options){.struct_bytes = sizeof(nmlp_optimize_options),
                                   .max_loss = r.max_loss,
                                   .calibration_tokens = r.calib_tokens,
                                   .heldout_tokens = r.heldout_tokens,
                                   .verify_tokens = r.verify_tokens,
                                   .context = r.context};
}

void nmlp_optimize_options_init(nmlp_optimize_options *options, size_t struct_bytes) {
    nmlp_optimize_options ours = defaults();
    nmlp_options_give(options, struct_bytes, &ours, sizeof ours);
}

void nmlp_optimize_result_init(nmlp_optimize_result *result, size_t struct_bytes) {
    nmlp_optimize_result ours = {0};
    nmlp_options_give(result, struct_bytes, &ours, sizeof ours);
}

static nmlp_status request_of(nmlp_optimization_request *r, const nmlp_optimize_options *o, nmlp_err *err) {
    *r = nmlp_optimization_defaults();
    r->load = (nmlp_load_options){.isa = o->isa, .n_threads = o->n_threads};
    r->target = o->target;
    r->max_loss = o->max_loss;
    r->minutes = o->minutes;
    r->calibration = o->calibration;
    r->calib_tokens = o->calibration_tokens;
    r->heldout_tokens = o->heldout_tokens;
    r->verify_tokens = o->verify_tokens;
    r->context = o->context;
    r->tile = o->tile;
    r->resume = o->resume != 0;
    r->work_dir = o->work_dir;
    return nmlp_workload_parse(&r->workload, o->workload ? o->workload : "chat", err);
}

static void give_result(nmlp_optimize_result *result, const nmlp_optimization *done) {
    const nmlp_optimized_point *p = &done->points[done->chosen];
    bool verified = done->verified.n_scored > 0;
    nmlp_optimize_result ours = {.simulated = done->simulated,
                                 .ms_before = done->points[0].ms,
                                 .ms_after = p->ms,
                                 .bytes_before = done->points[0].bytes,
                                 .bytes_after = p->bytes,
                                 .loss = p->loss,
                                 .loss_error = p->loss_error,
                                 .verified_loss =
                                     verified ? done->verified.nll - done->verified.nll_before : (double)NAN,
                                 .verified_loss_error = verified ? done->verified.rise_error : (double)NAN,
                                 .stepped_back = done->n_stepped_back,
                                 .seconds = done->seconds};
    snprintf(ours.verdict, sizeof ours.verdict, "%s", nmlp_verdict_text(done->verdict));
    snprintf(ours.chosen, sizeof ours.chosen, "%s", p->name);
    nmlp_options_give(result, result->struct_bytes, &ours, sizeof ours);
}

nmlp_status nmlp_optimize_model(const char *model_dir, const char *out_dir, const nmlp_optimize_options *options,
                                nmlp_optimize_result *result, nmlp_err *err) {
    nmlp_optimize_options o = defaults();
    nmlp_optimize_result ignored;
    nmlp_optimization_request request;
    nmlp_optimization done;
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ignored, sizeof ignored, result, "nmlp_optimize_result", err));
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&o, sizeof o, options, "nmlp_optimize_options", err));
    NMLP_RETURN_IF_FAILED(nmlp_api_check_conversion("nmlp_optimize_model", model_dir, out_dir, o.n_threads, err));
    NMLP_RETURN_IF_FAILED(request_of(&request, &o, err));
    nmlp_api_progress forward = {o.on_progress, o.progress_ctx};
    nmlp_progress progress = nmlp_api_progress_of(&forward);
    request.load.progress = &progress;
    nmlp_status st = nmlp_optimization_run(&done, model_dir, out_dir, &request, err);
    if (st == NMLP_OK && result) give_result(result, &done);
    nmlp_optimization_fini(&done);
    return st;
}
