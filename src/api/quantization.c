/* nmlp_quantize_model: options and results between a caller and the service. */
#include "neuronmlp/quantization.h"

#include <math.h>
#include <string.h>

#include "api/options.h"
#include "service/quantization.h"

static nmlp_quantization_options defaults(void) {
    nmlp_quantize_options o = nmlp_quantize_defaults();
    return (nmlp_quantization_options){.struct_bytes = sizeof(nmlp_quantization_options),
                                       .format = "q8",
                                       .group = 32,
                                       .head = "q8",
                                       .calibration_tokens = o.calib_tokens,
                                       .heldout_tokens = o.heldout_tokens,
                                       .context = o.context};
}

void nmlp_quantization_options_init(nmlp_quantization_options *options, size_t struct_bytes) {
    nmlp_quantization_options ours = defaults();
    nmlp_options_give(options, struct_bytes, &ours, sizeof ours);
}

void nmlp_quantization_result_init(nmlp_quantization_result *result, size_t struct_bytes) {
    nmlp_quantization_result ours = {0};
    nmlp_options_give(result, struct_bytes, &ours, sizeof ours);
}

static nmlp_status set_formats(nmlp_quantize_options *m, const nmlp_quantization_options *o, nmlp_err *err) {
    if (o->budget_bytes < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_bytes", "is %lld; it must be positive",
                               (long long)o->budget_bytes);
    if (o->group != 32 && o->group != 64)
        return nmlp_fail_field(err, NMLP_E_ARG, "group", "is %d; it must be 32 or 64", o->group);
    bool plain = o->format && strcmp(o->format, "bf16") == 0;
    if (!o->format || plain || !nmlp_quant_format_parse(&m->body, o->format, o->group))
        return nmlp_fail_field(err, NMLP_E_ARG, "format", "is \"%s\"; it must be q8, q6, q6m, q5m, q4, q4z, q4m or fp8",
                               o->format ? o->format : "");
    if (!o->head || !nmlp_quant_format_parse(&m->head, o->head, o->group))
        return nmlp_fail_field(err, NMLP_E_ARG, "head",
                               "is \"%s\"; it must be q8, q6, q6m, q5m, q4, q4z, q4m, fp8 or bf16",
                               o->head ? o->head : "");
    return NMLP_OK;
}

static nmlp_status set_method(nmlp_quantize_options *m, const nmlp_quantization_options *o, nmlp_err *err) {
    *m = nmlp_quantize_defaults();
    m->budget_bytes = o->budget_bytes;
    m->calib_tokens = o->calibration_tokens;
    m->heldout_tokens = o->heldout_tokens;
    m->context = o->context;
    m->resume = o->resume != 0;
    m->work_dir = o->work_dir;
    return set_formats(m, o, err);
}

static void give_result(nmlp_quantization_result *result, const nmlp_quantization_outcome *outcome) {
    const nmlp_quantize_report *r = &outcome->report;
    nmlp_quantization_result ours = {.params = r->params,
                                     .bytes_before = r->bytes_before,
                                     .bytes_after = r->bytes_after,
                                     .bits_per_weight = 8 * (double)r->bytes_after / (double)r->params,
                                     .calibration_tokens = r->calib_tokens,
                                     .heldout_tokens = r->heldout_tokens,
                                     .kl = r->measured ? r->after.kl : (double)NAN,
                                     .ppl_before = r->measured ? exp(r->before.nll) : (double)NAN,
                                     .ppl_after = r->measured ? exp(r->after.nll) : (double)NAN,
                                     .seconds = outcome->seconds};
    nmlp_options_give(result, result->struct_bytes, &ours, sizeof ours);
}

nmlp_status nmlp_quantize_model(const char *model_dir, const char *out_dir, const nmlp_quantization_options *options,
                                nmlp_quantization_result *result, nmlp_err *err) {
    nmlp_quantization_options o = defaults();
    nmlp_quantization_result ignored;
    nmlp_quantization_outcome outcome;
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ignored, sizeof ignored, result, "nmlp_quantization_result", err));
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&o, sizeof o, options, "nmlp_quantization_options", err));
    NMLP_RETURN_IF_FAILED(nmlp_api_check_conversion("nmlp_quantize_model", model_dir, out_dir, o.n_threads, err));
    nmlp_api_progress forward = {o.on_progress, o.progress_ctx};
    nmlp_progress progress = nmlp_api_progress_of(&forward);
    nmlp_quantization_request request = {
        .load = {.isa = o.isa, .precision = o.precision, .n_threads = o.n_threads, .progress = &progress},
        .calibration = o.calibration};
    NMLP_RETURN_IF_FAILED(set_method(&request.method, &o, err));
    nmlp_status st = nmlp_quantization_run(&outcome, model_dir, out_dir, &request, err);
    if (st == NMLP_OK && result) give_result(result, &outcome);
    nmlp_quantization_outcome_fini(&outcome);
    return st;
}
