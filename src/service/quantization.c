#include "service/quantization.h"

#include "base/clock.h"
#include "compress/calibrate/calib_text.h"
#include "compress/compress.h"

void nmlp_quantization_outcome_fini(nmlp_quantization_outcome *outcome) { nmlp_quantize_report_fini(&outcome->report); }

nmlp_status nmlp_quantization_run(nmlp_quantization_outcome *outcome, const char *model_dir, const char *out_dir,
                                  const nmlp_quantization_request *r, nmlp_err *err) {
    nmlp_load_options load = r->load;
    nmlp_quantize_options method = r->method;
    nmlp_loaded loaded = {0};
    nmlp_ids ids;
    nmlp_str name;
    nmlp_status st = NMLP_OK;
    double begin = nmlp_clock_seconds();
    *outcome = (nmlp_quantization_outcome){0};
    nmlp_ids_init(&ids);
    nmlp_str_init(&name);
    NMLP_TRY(nmlp_config_load(&outcome->config, model_dir, err));
    if (!load.precision && !load.isa) load.precision = nmlp_compress_is_large(&outcome->config) ? "bf16" : "f32";
    NMLP_TRY(nmlp_calib_text_read(model_dir, r->calibration, &ids, &name, err));
    load.work.calib_tokens = method.calib_tokens;
    NMLP_TRY(nmlp_load(&loaded, model_dir, &load, err));
    method.progress = load.progress;
    NMLP_TRY(nmlp_quantize_run(loaded.engine, ids.data, (int64_t)ids.len, out_dir, &method, &outcome->report, err));
    outcome->seconds = nmlp_clock_seconds() - begin;
out:
    nmlp_unload(&loaded);
    nmlp_ids_fini(&ids);
    nmlp_str_fini(&name);
    return st;
}
