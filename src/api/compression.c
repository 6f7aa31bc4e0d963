/* nmlp_compress_model: options and results between a caller and the service. */
#include "neuronmlp/compression.h"

#include <math.h>

#include "api/options.h"
#include "service/compression.h"

static nmlp_compression_options defaults(void) {
    nmlp_compress_options o = nmlp_compress_defaults();
    return (nmlp_compression_options){.struct_bytes = sizeof(nmlp_compression_options),
                                      .ratio = 0.2,
                                      .uniform = !o.adaptive,
                                      .refit = o.refit,
                                      .calibration_tokens = o.calib_tokens,
                                      .heldout_tokens = o.heldout_tokens,
                                      .context = o.context,
                                      .plain_svd = !o.whiten,
                                      .no_row_weights = !o.row_weights,
                                      .residual_tokens = o.token_weights,
                                      .joint = (int)o.joint,
                                      .no_shrink = !o.shrink,
                                      .cap = o.cap,
                                      .rounds = o.rounds,
                                      .slices = o.slices};
}

void nmlp_compression_options_init(nmlp_compression_options *options, size_t struct_bytes) {
    nmlp_compression_options ours = defaults();
    nmlp_options_give(options, struct_bytes, &ours, sizeof ours);
}

void nmlp_compression_result_init(nmlp_compression_result *result, size_t struct_bytes) {
    nmlp_compression_result ours = {0};
    nmlp_options_give(result, struct_bytes, &ours, sizeof ours);
}

static nmlp_compress_options method_of(const nmlp_compression_options *o) {
    nmlp_compress_options m = nmlp_compress_defaults();
    m.ratio = o->ratio;
    m.budget_ms = o->budget_ms;
    m.tile = o->tile;
    m.adaptive = !o->uniform;
    m.refit = o->refit != 0;
    m.whiten = !o->plain_svd;
    m.row_weights = !o->no_row_weights;
    m.token_weights = o->residual_tokens != 0;
    m.joint = (nmlp_joint_mode)o->joint;
    m.shrink = !o->no_shrink;
    m.cap = o->cap;
    m.rounds = o->rounds;
    m.attention = o->attention != 0;
    m.slices = o->slices;
    m.calib_tokens = o->calibration_tokens;
    m.heldout_tokens = o->heldout_tokens;
    m.context = o->context;
    m.resume = o->resume != 0;
    m.work_dir = o->work_dir;
    m.keep_work = o->work_dir != NULL;
    return m;
}

/* Ranks and bits together: the same figures from another table. */
static nmlp_compression_result mixed_result(const nmlp_mix_budget *b) {
    const nmlp_divergence *heldout = &b->answers[b->chosen].heldout;
    return (nmlp_compression_result){.params_before = b->params_before,
                                     .params_after = b->params_after,
                                     .mlp_params_before = b->mlp_params_before,
                                     .mlp_params_after = b->mlp_params_after,
                                     .bytes_before = b->bytes_before,
                                     .bytes_after = b->bytes_after,
                                     .calibration_tokens = b->calib_tokens,
                                     .heldout_tokens = b->heldout_tokens,
                                     .heldout_ppl_before = exp(heldout->nll_before),
                                     .heldout_ppl_after = exp(heldout->nll),
                                     .trained_ppl_before = (double)NAN,
                                     .trained_ppl_after = (double)NAN,
                                     .time_before_ms = b->ms_before,
                                     .time_after_ms = b->ms_after};
}

static nmlp_compression_result ranks_result(const nmlp_compress_report *r, const nmlp_recover_report *t) {
    bool trained = t->steps > 0;
    return (nmlp_compression_result){.params_before = r->params_before,
                                     .params_after = r->params_after,
                                     .mlp_params_before = r->mlp_params_before,
                                     .mlp_params_after = r->mlp_params_after,
                                     .bytes_before = r->bytes_before,
                                     .bytes_after = r->bytes_after,
                                     .calibration_tokens = r->calib_tokens,
                                     .heldout_tokens = r->heldout_tokens,
                                     .heldout_ppl_before = r->heldout_measured ? exp(r->dense.nll) : (double)NAN,
                                     .heldout_ppl_after = r->heldout_measured ? exp(r->final.nll) : (double)NAN,
                                     .trained_ppl_before = trained ? t->heldout_ppl_before : (double)NAN,
                                     .trained_ppl_after = trained ? t->heldout_ppl_after : (double)NAN,
                                     .time_before_ms = r->time_before_ms,
                                     .time_after_ms = r->time_after_ms};
}

static void give_result(nmlp_compression_result *result, const nmlp_compression_outcome *outcome) {
    nmlp_compression_result ours =
        outcome->mixed ? mixed_result(&outcome->budget) : ranks_result(&outcome->report, &outcome->trained);
    ours.seconds = outcome->seconds;
    nmlp_options_give(result, result->struct_bytes, &ours, sizeof ours);
}

nmlp_status nmlp_compress_model(const char *model_dir, const char *out_dir, const nmlp_compression_options *options,
                                nmlp_compression_result *result, nmlp_err *err) {
    nmlp_compression_options o = defaults();
    nmlp_compression_result ignored;
    nmlp_compression_outcome outcome;
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ignored, sizeof ignored, result, "nmlp_compression_result", err));
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&o, sizeof o, options, "nmlp_compression_options", err));
    if (o.joint < NMLP_JOINT_NEVER || o.joint > NMLP_JOINT_ALWAYS)
        return nmlp_fail_field(err, NMLP_E_ARG, "joint", "is %d; it must be 0 to 2", o.joint);
    NMLP_RETURN_IF_FAILED(nmlp_api_check_conversion("nmlp_compress_model", model_dir, out_dir, o.n_threads, err));
    nmlp_api_progress forward = {o.on_progress, o.progress_ctx};
    nmlp_progress progress = nmlp_api_progress_of(&forward);
    nmlp_compression_request request = {
        .load = {.isa = o.isa, .precision = o.precision, .n_threads = o.n_threads, .progress = &progress},
        .method = method_of(&o),
        .calibration = o.calibration,
        .target = o.target,
        .budget_bytes = o.budget_bytes,
        .train_steps = o.train_steps,
        .train_text = o.train_text};
    nmlp_status st = nmlp_compression_run(&outcome, model_dir, out_dir, &request, err);
    if (st == NMLP_OK && result) give_result(result, &outcome);
    nmlp_compression_outcome_fini(&outcome);
    return st;
}
