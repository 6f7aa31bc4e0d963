#include "service/optimization.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/dir_copy.h"
#include "base/file.h"
#include "base/ints.h"
#include "checkpoint/target.h"
#include "service/optimization_internal.h"

static const unsigned plain_only = 1u << NMLP_QUANT_OPTION_PLAIN;

/* Without zero points, which GPUs widen: times would be those of bf16 there. Nor those that run as Q8, which loses
 * less in the same time. */
static unsigned timed_options(void) {
    unsigned options = 0;
    for (int i = 0; i < NMLP_QUANT_OPTIONS; i++)
        if (!nmlp_quant_option(i).zeros && nmlp_quant_option_runs_as(i) == i) options |= 1u << i;
    return options;
}

nmlp_optimization_request nmlp_optimization_defaults(void) {
    return (nmlp_optimization_request){.workload = {.name = "chat", .prompt = 256, .generate = 256, .batch = 1},
                                       .max_loss = 0.01,
                                       .calib_tokens = 32768,
                                       .heldout_tokens = -1,
                                       .verify_tokens = 8192,
                                       .context = 512};
}

const char *nmlp_verdict_text(nmlp_verdict verdict) {
    static const char *const texts[] = {"leave it dense", "bits only", "ranks only", "ranks and bits"};
    return texts[verdict];
}

void nmlp_optimization_fini(nmlp_optimization *r) {
    nmlp_mix_fini(&r->mix);
    *r = (nmlp_optimization){0};
}

/* ---- before the work ---- */

static nmlp_status check(const nmlp_optimization_request *r, nmlp_err *err) {
    if (!(r->max_loss > 0 && r->max_loss < 1)) {
        nmlp_fail_field(err, NMLP_E_ARG, "max_loss", "is %g; it must be above 0 and below 1", r->max_loss);
        nmlp_fail_hint(err, "it is the share by which the perplexity may rise; 0.01 is 1 %%");
        return NMLP_E_ARG;
    }
    if (!(r->minutes >= 0 && r->minutes <= 1e6))
        return nmlp_fail_field(err, NMLP_E_ARG, "minutes", "is %g; it must be 0 or more", r->minutes);
    if (r->tile < 0 || r->tile > 1 << 24)
        return nmlp_fail_field(err, NMLP_E_ARG, "tile", "is %lld; it must be at least 1", (long long)r->tile);
    if (r->verify_tokens < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "verify_tokens", "is %lld; it must be 0 or more",
                               (long long)r->verify_tokens);
    return NMLP_OK;
}

/* A target that is not there is found out before the work. */
static nmlp_status check_target(struct nmlp_optimize_job *j, nmlp_err *err) {
    const char *target = j->result->target;
    nmlp_machine machine;
    const nmlp_backend *backend;
    if (strcmp(target, "cpu") == 0) return NMLP_OK;
    if (strcmp(target, "cuda") == 0) return nmlp_backend_choose(&backend, "cuda", NULL, err);
    return nmlp_machine_open(&machine, target, err);
}

static nmlp_status open_job(struct nmlp_optimize_job *j, const char *model_dir, const char *out_dir, nmlp_err *err) {
    const nmlp_optimization_request *r = j->request;
    bool trainium = nmlp_target_is_trainium(j->result->target);
    nmlp_mix_models_request request = {.model_dir = model_dir,
                                       .out_dir = out_dir,
                                       .load = r->load,
                                       .method = nmlp_compress_defaults(),
                                       .calibration = r->calibration,
                                       .verify_tokens = r->verify_tokens,
                                       .verify = &j->verify,
                                       .calibration_name = &j->calibration_name};
    const double probe_ratio = 0.2;
    enum { TRAINIUM_TILE = 128 };
    NMLP_RETURN_IF_FAILED(nmlp_config_load(&j->result->config, model_dir, err));
    request.method.ratio = probe_ratio;
    request.method.calib_tokens = r->calib_tokens;
    request.method.heldout_tokens = r->heldout_tokens;
    request.method.context = r->context;
    request.method.resume = r->resume;
    request.method.work_dir = r->work_dir;
    request.method.tile = r->tile ? r->tile : trainium ? TRAINIUM_TILE : nmlp_compress_cpu_tile(&j->result->config);
    NMLP_RETURN_IF_FAILED(nmlp_target_check(out_dir, model_dir, err));
    NMLP_RETURN_IF_FAILED(nmlp_mix_models_open(&j->models, &request, err));
    j->timer.pool = j->models.dense.pool;
    NMLP_RETURN_IF_FAILED(nmlp_dir_stage_open(&j->output, out_dir, false, err));
    j->result->calib_tokens = nmlp_calib_windows_calib_tokens(&j->models.windows);
    j->result->heldout_tokens = nmlp_calib_windows_heldout_tokens(&j->models.windows);
    j->result->verify_tokens = (int64_t)j->verify.len;
    return NMLP_OK;
}

/* ---- models ---- */

static nmlp_status build(struct nmlp_optimize_job *j, const char *name, const nmlp_mix *mix, int *which,
                         nmlp_err *err) {
    const nmlp_mix_model *model = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_mix_models_build(&j->models, name, mix, &model, err));
    *which = (int)(model - j->models.list);
    return NMLP_OK;
}

static nmlp_status build_uniform(struct nmlp_optimize_job *j, const char *name, int body, int head, int *which,
                                 nmlp_err *err) {
    nmlp_quant_format b = nmlp_quant_option(body), h = nmlp_quant_option(head);
    nmlp_mix mix;
    NMLP_RETURN_IF_FAILED(nmlp_mix_uniform(&mix, j->models.survey.n_layers, &b, &h, err));
    nmlp_status st = build(j, name, &mix, which, err);
    nmlp_mix_fini(&mix);
    return st;
}

/* The paper's: the same rank for every matrix; where one tile pays. */
static nmlp_status build_uniform_ranks(struct nmlp_optimize_job *j, int *which, nmlp_err *err) {
    const nmlp_config *c = &j->result->config;
    nmlp_quant_format plain = nmlp_quant_option(NMLP_QUANT_OPTION_PLAIN);
    int64_t tile = j->models.survey.tile;
    int64_t tall = nmlp_rank_uniform(c->intermediate, c->hidden, j->models.method.ratio, tile);
    nmlp_mix mix;
    *which = -1;
    if (tall == 0) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_mix_uniform(&mix, j->models.survey.n_layers, &plain, &plain, err));
    for (int64_t l = 0; l < mix.n_layers; l++)
        mix.ranks[l] = (nmlp_layer_ranks){
            .rank = {tall, tall, nmlp_rank_uniform(c->hidden, c->intermediate, j->models.method.ratio, tile)}};
    nmlp_status st = build(j, "uniform rank, 20 % removed", &mix, which, err);
    nmlp_mix_fini(&mix);
    return st;
}

static double scale_of(const struct nmlp_optimize_job *j, int which) {
    nmlp_mix_problem p = j->problem;
    nmlp_mix mix = j->models.list[which].mix; /* a view: priced, not kept */
    p.scale = nmlp_mix_scale_none();
    nmlp_mix_price(&p, &mix);
    double measured = j->models.list[which].heldout.kl;
    return mix.loss > 0 && measured > 0 ? measured / mix.loss : 1;
}

/* What every user could have had without a search; what they lose corrects the survey. */
static nmlp_status build_references(struct nmlp_optimize_job *j, nmlp_err *err) {
    enum { SMALLEST = 0 };
    int which;
    if (j->problem.options != plain_only) {
        NMLP_RETURN_IF_FAILED(build_uniform(j, "q8", NMLP_QUANT_OPTION_Q8, NMLP_QUANT_OPTION_Q8, &which, err));
        j->problem.scale.bits[NMLP_QUANT_OPTION_Q8] = scale_of(j, which);
        j->q8 = which;
        NMLP_RETURN_IF_FAILED(build_uniform(j, "q4, q8 head", SMALLEST, NMLP_QUANT_OPTION_Q8, &which, err));
        for (int i = SMALLEST; i < NMLP_QUANT_OPTIONS; i++)
            if (nmlp_dtype_bits(nmlp_quant_option(i).dtype) == 4) j->problem.scale.bits[i] = scale_of(j, which);
        j->q4 = which;
        const nmlp_divergence *d = &j->models.list[which].heldout;
        j->nats_per_kl = fmin(fmax((d->nll - d->nll_before) / fmax(d->kl, 1e-9), 0.25), 1.5);
    }
    NMLP_RETURN_IF_FAILED(build_uniform_ranks(j, &which, err));
    if (which >= 0) j->problem.scale.ranks = scale_of(j, which);
    return NMLP_OK;
}

/* ---- the search ---- */

static double rise(const nmlp_divergence *d) { return d->nll - d->nll_before; }

/* The loss with its uncertainty: what must be within the bound. */
static double safe_rise(const nmlp_divergence *d) { return fmax(rise(d), 0) + d->rise_error; }

/* The fastest mix under the problem's permissions whose built model is within the bound: the divergence allowed to the
 * knapsack is moved by what the built models lose. */
static nmlp_status search(struct nmlp_optimize_job *j, const char *name, bool ranks, unsigned options, nmlp_err *err) {
    enum { TRIES = 3 };
    nmlp_mix_problem p = j->problem;
    double bound = j->result->bound, allowed = bound / j->nats_per_kl, known_good = 0, known_bad = INFINITY;
    p.ranks = ranks;
    p.options = options;
    for (int i = 0; i < TRIES; i++) {
        nmlp_mix mix;
        int which, before = j->models.n;
        NMLP_RETURN_IF_FAILED(nmlp_mix_within_loss(&p, allowed, &mix, err));
        bool plain = !nmlp_mix_has_ranks(&mix) && !nmlp_mix_has_bits(&mix);
        nmlp_status st = plain ? NMLP_OK : build(j, name, &mix, &which, err);
        nmlp_mix_fini(&mix);
        if (st != NMLP_OK) return st;
        if (plain) return NMLP_OK; /* nothing is fast enough to lose for: the dense model is a candidate anyway */
        const nmlp_divergence *d = &j->models.list[which].heldout;
        double lost = safe_rise(d);
        if (lost <= bound)
            known_good = fmax(known_good, allowed);
        else
            known_bad = fmin(known_bad, allowed);
        if (lost <= bound && (lost > 0.85 * bound || j->models.n == before)) return NMLP_OK;
        double next = allowed * fmin(fmax(0.92 * bound / lost, 0.3), 2);
        if (isfinite(known_bad) && known_good > 0) next = 0.5 * (known_good + known_bad);
        allowed = next;
    }
    return NMLP_OK;
}

static nmlp_status search_all(struct nmlp_optimize_job *j, nmlp_err *err) {
    unsigned options = j->problem.options;
    NMLP_RETURN_IF_FAILED(search(j, "mixed", true, options, err));
    if (options != plain_only) NMLP_RETURN_IF_FAILED(search(j, "bits", false, options, err));
    if (options != plain_only) NMLP_RETURN_IF_FAILED(search(j, "ranks", true, plain_only, err));
    return NMLP_OK;
}

/* ---- times ---- */

/* Times of forms, from the work folder where an interrupted run measured them: other times would mean other mixes. */
static nmlp_status open_times(struct nmlp_optimize_job *j, nmlp_err *err) {
    char path[NMLP_MIX_PATH_BYTES];
    bool known = false;
    const nmlp_workload *w = &j->result->workload;
    int64_t words[] = {w->prompt, w->generate, w->batch, nmlp_pool_threads(j->models.dense.pool)};
    uint64_t hash = nmlp_hash64(words, sizeof words, j->models.fingerprint);
    hash = nmlp_hash64(j->result->target, strlen(j->result->target), hash);
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, j->models.work.temp_path, "times", err));
    NMLP_RETURN_IF_FAILED(nmlp_form_times_load(&j->times, path, hash, &known, err));
    if (known) return NMLP_OK;
    if (strcmp(j->result->target, "cuda") == 0) {
        NMLP_RETURN_IF_FAILED(nmlp_optimize_time_cuda_forms(j, err));
    } else {
        nmlp_form_timing timing = {.model = &j->models.dense.model,
                                   .workload = *w,
                                   .target = j->result->target,
                                   .isa = j->request->load.isa,
                                   .tile = j->models.method.tile,
                                   .pool = j->models.dense.pool,
                                   .progress = j->models.method.progress};
        NMLP_RETURN_IF_FAILED(nmlp_form_times_measure(&j->times, &timing, err));
    }
    return nmlp_form_times_save(&j->times, path, hash, err);
}

/* ---- all of it ---- */

static nmlp_status write_out(struct nmlp_optimize_job *j, const char *model_dir, nmlp_err *err) {
    const nmlp_optimization *r = j->result;
    char path[NMLP_MIX_PATH_BYTES];
    nmlp_str card;
    int64_t bytes;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&card);
    if (r->chosen == 0) { /* as it is, in our spelling */
        NMLP_TRY(nmlp_path_join(path, sizeof path, j->models.work.temp_path, "dense", err));
        if (!nmlp_file_is_dir(path))
            NMLP_TRY(nmlp_model_expand(&j->models.dense.model, path, j->models.dense.pool, j->models.method.progress,
                                       &bytes, err));
        NMLP_TRY(nmlp_dir_copy_files(path, j->output.temp_path, true, err));
    } else {
        NMLP_TRY(nmlp_dir_copy_files(nmlp_optimize_dir(j, r->chosen), j->output.temp_path, true, err));
    }
    nmlp_optimization_card(r, model_dir, j->request->made_by, &card);
    NMLP_TRY(nmlp_str_status(&card, err));
    NMLP_TRY(nmlp_path_join(path, sizeof path, j->output.temp_path, "README.md", err));
    if (nmlp_file_exists(path)) (void)remove(path); /* may be a link to the work folder's */
    NMLP_TRY(nmlp_file_write_text(path, nmlp_str_text(&card), card.len, err));
    if (j->request->on_write) NMLP_TRY(j->request->on_write(j->request->ctx, r, j->output.temp_path, err));
    NMLP_TRY(nmlp_dir_stage_commit(&j->output, err));
out:
    nmlp_str_fini(&card);
    return st;
}

static nmlp_status work(struct nmlp_optimize_job *j, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_optimize_estimate(j, err));
    NMLP_RETURN_IF_FAILED(nmlp_mix_models_survey(&j->models, err));
    j->cost = nmlp_form_times_cost(&j->times);
    j->problem = (nmlp_mix_problem){.model = &j->models.dense.model,
                                    .survey = &j->models.survey,
                                    .cost = &j->cost,
                                    .scale = nmlp_mix_scale_none(),
                                    .ranks = true,
                                    .options = j->result->simulated ? plain_only : timed_options()};
    NMLP_RETURN_IF_FAILED(build_references(j, err));
    NMLP_RETURN_IF_FAILED(open_times(j, err));
    NMLP_RETURN_IF_FAILED(search_all(j, err));
    if (j->request->minutes > 0) NMLP_RETURN_IF_FAILED(nmlp_optimize_train(j, err));
    NMLP_RETURN_IF_FAILED(nmlp_optimize_time_models(j, err));
    NMLP_RETURN_IF_FAILED(nmlp_optimize_choose(j, err));
    return nmlp_optimize_draw_frontier(j, err);
}

nmlp_status nmlp_optimization_run(nmlp_optimization *result, const char *model_dir, const char *out_dir,
                                  const nmlp_optimization_request *r, nmlp_err *err) {
    struct nmlp_optimize_job j = {
        .request = r, .result = result, .nats_per_kl = 0.6, .q8 = -1, .q4 = -1, .trained = -1};
    double begin = nmlp_clock_seconds();
    nmlp_status st = NMLP_OK;
    *result = (nmlp_optimization){
        .target = r->target ? r->target : "cpu", .workload = r->workload, .bound = log1p(r->max_loss)};
    NMLP_RETURN_IF_FAILED(check(r, err));
    NMLP_RETURN_IF_FAILED(check_target(&j, err));
    result->simulated = nmlp_target_is_trainium(result->target);
    nmlp_ids_init(&j.verify);
    nmlp_str_init(&j.calibration_name);
    j.timer = (nmlp_workload_timer){.workload = r->workload,
                                    .target = result->target,
                                    .isa = r->load.isa,
                                    .rounds = NMLP_FIRST_ROUNDS,
                                    .decode_seconds = 1e-3 * NMLP_DECODE_SAMPLE_MS};
    NMLP_TRY(open_job(&j, model_dir, out_dir, err));
    NMLP_TRY(work(&j, err));
    result->seconds = nmlp_clock_seconds() - begin;
    NMLP_TRY(write_out(&j, model_dir, err));
out:
    nmlp_dir_stage_abort(&j.output);
    st = nmlp_mix_models_close(&j.models, st, err);
    nmlp_ids_fini(&j.verify);
    nmlp_str_fini(&j.calibration_name);
    return st;
}
