#include "service/compression.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/dir_stage.h"
#include "base/file.h"
#include "base/ints.h"
#include "checkpoint/target.h"
#include "compress/calibrate/calib_text.h"
#include "service/mlp_cost.h"
#include "text/tokenizer.h"

/* Layers run one after the other over all windows, so that packing one each time costs little beside running it; a
 * model need not fit into memory. */
enum { RESIDENT_BYTES = 1 << 29 };
enum { TRAINIUM_TILE = 128, SLICE_TILE = 8, ROUNDS_MAX = 8, PATH_MAX_BYTES = 4096 };

struct job {
    const nmlp_compression_request *request;
    const char *model_dir, *out_dir;
    nmlp_compress_options method;
    nmlp_loaded dense;
    nmlp_ids calibration;
    nmlp_str calibration_name;
    nmlp_compression_outcome *outcome;
};

void nmlp_compression_outcome_fini(nmlp_compression_outcome *outcome) {
    nmlp_compress_report_fini(&outcome->report);
    nmlp_mix_budget_fini(&outcome->budget);
    nmlp_recover_report_fini(&outcome->trained);
}

static nmlp_status check(const nmlp_compression_request *r, nmlp_err *err) {
    const nmlp_compress_options *m = &r->method;
    if (m->budget_ms < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_ms", "is %g; it must be positive", m->budget_ms);
    if (m->ratio != 0 && m->budget_ms != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_ms", "and `ratio` exclude each other");
    if (r->budget_bytes < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_bytes", "is %lld; it must be positive",
                               (long long)r->budget_bytes);
    if (r->budget_bytes > 0 && (m->ratio != 0 || m->budget_ms != 0))
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_bytes", "and `%s` exclude each other",
                               m->ratio != 0 ? "ratio" : "budget_ms");
    if (r->budget_bytes > 0 && (!m->adaptive || !m->refit || r->train_steps > 0))
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_bytes",
                               "needs adaptive ranks (`allocation`) and the refit, without training");
    if (m->rounds < -1 || m->rounds > ROUNDS_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "rounds", "is %d; it must be 0 to %d", m->rounds, ROUNDS_MAX);
    if (m->tile < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "tile", "is %lld; it must be at least 1", (long long)m->tile);
    if (m->attention && (r->budget_bytes > 0 || r->train_steps > 0))
        return nmlp_fail_field(err, NMLP_E_ARG, "attention", "must be off with `%s`, which takes MLPs alone",
                               r->budget_bytes > 0 ? "budget_bytes" : "train_steps");
    if (m->slices > 1 && r->budget_bytes > 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "slices", "must be 1 with `budget_bytes`, which quantises");
    if (m->slices > 1 && r->train_steps > 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "slices", "must be 1 with `train_steps`: training knows no slices");
    if (nmlp_group_size(m->group) > 1 && r->train_steps > 0) {
        nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "train_steps", "is for one process, %d were started",
                        nmlp_group_size(m->group));
        nmlp_fail_hint(err, "compress first; recover trains on several processes");
        return NMLP_E_UNSUPPORTED;
    }
    if (r->train_steps < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "train_steps", "is %lld; it must be 0 or more",
                               (long long)r->train_steps);
    return NMLP_OK;
}

/* Forward passes are most of a large model's compression, and bf16 makes them several times faster; small models stay
 * exact. */
static nmlp_status load(struct job *j, nmlp_err *err) {
    nmlp_load_options options = j->request->load;
    nmlp_config config;
    if (!options.precision && !options.isa) {
        NMLP_RETURN_IF_FAILED(nmlp_config_load(&config, j->model_dir, err));
        options.precision = nmlp_compress_is_large(&config) ? "bf16" : "f32";
    }
    options.resident_bytes = RESIDENT_BYTES;
    options.work.calib_tokens = j->request->method.calib_tokens;
    return nmlp_load(&j->dense, j->model_dir, &options, err);
}

static bool is_cpu(const char *target) { return !target || strcmp(target, "cpu") == 0; }

static nmlp_status set_target(struct job *j, nmlp_err *err) {
    const nmlp_config *c = &j->dense.model.config;
    nmlp_compress_options *m = &j->method;
    const char *target = j->request->target;
    bool cpu = is_cpu(target);
    if (m->tile == 0) {
        m->tile = cpu ? nmlp_compress_cpu_tile(c) : TRAINIUM_TILE;
        if (m->slices > 1) m->tile = nmlp_max(SLICE_TILE, m->tile / m->slices); /* a slice has smaller ranks */
    }
    if (m->budget_ms == 0) return NMLP_OK;
    if (!cpu) return nmlp_service_mlp_cost(&m->time, target, c, 1, m->tile, err);
    if (nmlp_group_leads(m->group))
        NMLP_RETURN_IF_FAILED(
            nmlp_cost_measure_cpu(&m->time, j->request->load.isa, c->intermediate, c->hidden, j->dense.pool, err));
    return nmlp_group_broadcast(m->group, &m->time, sizeof m->time, err);
}

static nmlp_status compress(struct job *j, const char *out_dir, nmlp_err *err) {
    return nmlp_compress_run(j->dense.engine, j->calibration.data, (int64_t)j->calibration.len, out_dir, &j->method,
                             &j->outcome->report, err);
}

/* Trains the factors in `dir` against the dense model. The state of another run is no hindrance: it is made again. */
static nmlp_status train(struct job *j, const char *dir, nmlp_err *err) {
    const nmlp_compression_request *r = j->request;
    nmlp_recover_options options = nmlp_recover_defaults();
    nmlp_model model = {0};
    nmlp_ids ids;
    nmlp_status st = NMLP_OK;
    nmlp_ids_init(&ids);
    if (r->train_text) NMLP_TRY(nmlp_tokenizer_encode_file(j->model_dir, r->train_text, &ids, err));
    const nmlp_ids *text = r->train_text ? &ids : &j->calibration;
    NMLP_TRY(nmlp_model_open(&model, dir, err));
    options.teacher = &j->dense.model;
    options.steps = r->train_steps;
    options.isa = r->load.isa;
    options.pool = j->dense.pool;
    options.progress = r->load.progress;
    options.resume = j->method.resume;
    st = nmlp_recover(&model, text->data, (int64_t)text->len, j->out_dir, &options, &j->outcome->trained, err);
    if (options.resume && (st == NMLP_E_UNSUPPORTED || st == NMLP_E_FORMAT)) {
        nmlp_progress_note(options.progress, "the training that was interrupted does not fit and begins anew");
        options.resume = false;
        st = nmlp_recover(&model, text->data, (int64_t)text->len, j->out_dir, &options, &j->outcome->trained, err);
    }
out:
    nmlp_model_close(&model);
    nmlp_ids_fini(&ids);
    return st;
}

/* The factors wait in a work folder until they are trained: what appears in out_dir is the end result. */
static nmlp_status compress_and_train(struct job *j, nmlp_err *err) {
    char name[PATH_MAX_BYTES], factors[PATH_MAX_BYTES], work[PATH_MAX_BYTES];
    nmlp_dir_stage stage = {0};
    nmlp_status st = NMLP_OK;
    size_t len = strlen(j->out_dir);
    while (len > 1 && j->out_dir[len - 1] == '/') len--;
    NMLP_RETURN_IF_FAILED(nmlp_target_check(j->out_dir, j->model_dir, err));
    if (snprintf(name, sizeof name, "%.*s.training", (int)len, j->out_dir) >= (int)sizeof name)
        return nmlp_fail(err, NMLP_E_ARG, "%s: the path is too long", j->out_dir);
    NMLP_RETURN_IF_FAILED(nmlp_dir_stage_open(&stage, name, j->method.resume, err));
    NMLP_TRY(nmlp_path_join(factors, sizeof factors, stage.temp_path, "factors", err));
    NMLP_TRY(nmlp_path_join(work, sizeof work, stage.temp_path, "layers", err));
    if (!j->method.work_dir) {
        j->method.work_dir = work;
        j->method.keep_work = true;
    }
    NMLP_TRY(compress(j, factors, err));
    NMLP_TRY(train(j, factors, err));
out:
    if (st == NMLP_OK) return nmlp_dir_stage_discard(&stage, err);
    if (nmlp_dir_stage_has_files(&stage)) nmlp_dir_stage_keep(&stage);
    nmlp_dir_stage_abort(&stage);
    return st;
}

/* Bytes are spent on ranks and bits; so is time on a CPU, where the method and the model allow it. */
static bool wants_mix(const nmlp_compression_request *r, const nmlp_config *c) {
    const nmlp_compress_options *m = &r->method;
    if (r->budget_bytes > 0) return true;
    return m->budget_ms > 0 && !m->attention && nmlp_group_size(m->group) <= 1 && is_cpu(r->target) && m->adaptive &&
           m->refit && r->train_steps == 0 && m->slices <= 1 && !c->features->fused && c->n_experts == 0 &&
           !c->quantised;
}

/* Ranks and bits together, from the beginning. */
static nmlp_status spend(nmlp_compression_outcome *outcome, const char *model_dir, const char *out_dir,
                         const nmlp_compression_request *r, nmlp_err *err) {
    const double probe_ratio = 0.2;
    nmlp_str name;
    nmlp_mix_models_request request = {.model_dir = model_dir,
                                       .out_dir = out_dir,
                                       .load = r->load,
                                       .method = r->method,
                                       .calibration = r->calibration,
                                       .calibration_name = &name};
    nmlp_mix_limit limit = {.bytes = r->budget_bytes, .ms = r->method.budget_ms};
    if (request.method.tile == 0)
        request.method.tile = is_cpu(r->target) ? nmlp_compress_cpu_tile(&outcome->config) : TRAINIUM_TILE;
    request.method.ratio = probe_ratio;
    request.method.budget_ms = 0;
    nmlp_str_init(&name);
    nmlp_status st = nmlp_mix_budget_run(&outcome->budget, &request, limit, err);
    nmlp_str_fini(&name);
    return st;
}

nmlp_status nmlp_compression_run(nmlp_compression_outcome *outcome, const char *model_dir, const char *out_dir,
                                 const nmlp_compression_request *r, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct job j = {.request = r, .model_dir = model_dir, .out_dir = out_dir, .method = r->method, .outcome = outcome};
    double begin = nmlp_clock_seconds();
    *outcome = (nmlp_compression_outcome){0};
    nmlp_ids_init(&j.calibration);
    nmlp_str_init(&j.calibration_name);
    NMLP_TRY(check(r, err));
    NMLP_TRY(nmlp_config_load(&outcome->config, model_dir, err));
    outcome->mixed = wants_mix(r, &outcome->config);
    if (outcome->mixed) {
        NMLP_TRY(spend(outcome, model_dir, out_dir, r, err));
        outcome->seconds = nmlp_clock_seconds() - begin;
        goto out;
    }
    NMLP_TRY(load(&j, err));
    NMLP_TRY(nmlp_calib_text_read(model_dir, r->calibration, &j.calibration, &j.calibration_name, err));
    NMLP_TRY(set_target(&j, err));
    outcome->config = j.dense.model.config;
    j.method.calib_name = nmlp_str_text(&j.calibration_name);
    j.method.progress = r->load.progress;
    NMLP_TRY(r->train_steps > 0 ? compress_and_train(&j, err) : compress(&j, out_dir, err));
    outcome->seconds = nmlp_clock_seconds() - begin;
out:
    nmlp_str_fini(&j.calibration_name);
    nmlp_ids_fini(&j.calibration);
    nmlp_unload(&j.dense);
    return st;
}
