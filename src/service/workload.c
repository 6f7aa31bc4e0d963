#include "service/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "bench/model.h"
#include "service/kernel.h"
#include "trainium/package/forms.h"

nmlp_status nmlp_workload_parse(nmlp_workload *w, const char *text, nmlp_err *err) {
    static const char batch[] = "batch=";
    if (strcmp(text, "chat") == 0) {
        *w = (nmlp_workload){.name = "chat", .prompt = 256, .generate = 256, .batch = 1};
        return NMLP_OK;
    }
    if (strcmp(text, "prompt") == 0) {
        *w = (nmlp_workload){.name = "prompt", .prompt = NMLP_WORKLOAD_PROMPT, .batch = 1};
        return NMLP_OK;
    }
    if (strncmp(text, batch, sizeof batch - 1) == 0) {
        char *end;
        long n = strtol(text + sizeof batch - 1, &end, 10);
        if (end != text + sizeof batch - 1 && *end == '\0' && n >= 1 && n <= NMLP_WORKLOAD_BATCH_MAX) {
            *w = (nmlp_workload){.name = "batch", .generate = 1, .batch = n};
            return NMLP_OK;
        }
    }
    return nmlp_fail_field(err, NMLP_E_ARG, "workload",
                           "is \"%.40s\"; it must be chat, prompt or batch=N with N 1 to %d", text,
                           NMLP_WORKLOAD_BATCH_MAX);
}

void nmlp_workload_text(char text[80], const nmlp_workload *w) {
    if (w->prompt && w->generate)
        snprintf(text, 80, "a prompt of %lld tokens and %lld generated", (long long)w->prompt, (long long)w->generate);
    else if (w->prompt)
        snprintf(text, 80, "a prompt of %lld tokens", (long long)w->prompt);
    else
        snprintf(text, 80, "a token of each of %lld sequences", (long long)w->batch);
}

bool nmlp_target_is_trainium(const char *target) { return strcmp(target, "cpu") != 0 && strcmp(target, "cuda") != 0; }

/* ---- measured ---- */

/* Prefills are timed with as many tokens as the model takes of a prompt, and counted by the token. */
static double unit_ms(const nmlp_workload *w, const nmlp_bench_model_result *r) {
    double seconds = 0;
    int at = 0;
    if (w->prompt) seconds += (double)w->prompt / r->cases[at++].tokens_s.median;
    if (w->generate) seconds += (double)(w->generate * w->batch) / r->cases[at].tokens_s.median;
    return 1e3 * seconds;
}

/* The same from the first model's time and the median ratios. */
static double ratio_ms(const nmlp_workload *w, const nmlp_bench_model_result *first, const nmlp_bench_model_result *r) {
    double seconds = 0;
    int at = 0;
    if (w->prompt) {
        seconds += (double)w->prompt / (first->cases[at].tokens_s.median * r->cases[at].speedup);
        at++;
    }
    if (w->generate)
        seconds += (double)(w->generate * w->batch) / (first->cases[at].tokens_s.median * r->cases[at].speedup);
    return 1e3 * seconds;
}

static nmlp_status measure(const nmlp_workload_timer *t, const char *const *dirs, int n, double *ms, nmlp_err *err) {
    nmlp_config config;
    NMLP_RETURN_IF_FAILED(nmlp_config_load(&config, dirs[0], err));
    int prompt = (int)nmlp_min(NMLP_WORKLOAD_PROMPT, config.max_positions);
    nmlp_bench_model_result *results = nmlp_mem_new((size_t)n, sizeof *results, err);
    if (!results) return NMLP_E_NOMEM;
    nmlp_bench_model_options o = {.dirs = dirs,
                                  .n_models = n,
                                  .device = t->target,
                                  .isa = t->isa,
                                  .bf16 = true,
                                  .rounds = t->rounds,
                                  .decode_seconds = t->decode_seconds,
                                  .batches = &t->workload.batch,
                                  .n_batches = t->workload.generate ? 1 : 0,
                                  .prompts = &prompt,
                                  .n_prompts = t->workload.prompt ? 1 : 0,
                                  .rates_only = true,
                                  .pool = t->pool};
    nmlp_status st = nmlp_bench_model_run(results, &o, err);
    for (int i = 0; i < n && st == NMLP_OK; i++)
        ms[i] = i == 0 ? unit_ms(&t->workload, &results[0]) : ratio_ms(&t->workload, &results[0], &results[i]);
    nmlp_mem_free(results);
    return st;
}

static nmlp_status sum_bytes(const char *const *dirs, int n, double *bytes, nmlp_err *err) {
    *bytes = 0;
    for (int i = 0; i < n; i++) {
        nmlp_model model;
        NMLP_RETURN_IF_FAILED(nmlp_model_open(&model, dirs[i], err));
        *bytes += (double)nmlp_model_measure(&model).bytes;
        nmlp_model_close(&model);
    }
    return NMLP_OK;
}

/* All in turns where memory allows it, else each beside the first. */
static nmlp_status measure_all(const nmlp_workload_timer *t, const char *const *dirs, int n, double *ms,
                               nmlp_err *err) {
    double bytes;
    NMLP_RETURN_IF_FAILED(sum_bytes(dirs, n, &bytes, err));
    if (n <= NMLP_BENCH_MODELS_MAX && bytes <= NMLP_WORKLOAD_TOGETHER_BYTES) return measure(t, dirs, n, ms, err);
    for (int i = 1; i < n; i++) {
        const char *pair[] = {dirs[0], dirs[i]};
        double both[2];
        NMLP_RETURN_IF_FAILED(measure(t, pair, 2, both, err));
        if (i == 1) ms[0] = both[0];
        ms[i] = ms[0] * both[1] / both[0];
    }
    return n == 1 ? measure(t, dirs, 1, ms, err) : NMLP_OK;
}

/* ---- simulated ---- */

static nmlp_status simulate(const nmlp_workload_timer *t, const nmlp_machine *machine, const char *dir, double *ms,
                            nmlp_err *err) {
    const nmlp_workload *w = &t->workload;
    nmlp_model model;
    nmlp_mlp_forms forms = {0};
    nmlp_prediction p;
    nmlp_status st = NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&model, dir, err));
    const nmlp_config *c = &model.config;
    nmlp_predict_request rq = {.decoder = {.hidden = c->hidden,
                                           .intermediate = c->intermediate,
                                           .n_layers = c->n_layers,
                                           .n_heads = c->n_heads,
                                           .n_kv_heads = c->n_kv_heads,
                                           .head_dim = c->head_dim,
                                           .vocab = c->vocab},
                               .prompt = w->prompt ? w->prompt : NMLP_WORKLOAD_PROMPT,
                               .generate = nmlp_max(1, w->generate),
                               .batch = w->batch,
                               .tp = 1,
                               .dtype = NMLP_NC_BF16};
    nmlp_planner planner = nmlp_kernel_planner(machine, NULL);
    if (c->compressed) NMLP_TRY(nmlp_mlp_forms_of(&forms, &model, err));
    rq.decoder.forms = forms.list;
    rq.decoder.n_forms = forms.n;
    NMLP_TRY(nmlp_predict(&p, &planner, &rq, err));
    *ms = !w->generate ? p.ttft_ms : !w->prompt ? p.tpot_ms : p.e2e_ms;
out:
    nmlp_mlp_forms_fini(&forms);
    nmlp_model_close(&model);
    return st;
}

nmlp_status nmlp_workload_time(const nmlp_workload_timer *t, const char *const *dirs, int n, double *ms,
                               nmlp_err *err) {
    nmlp_machine machine;
    if (!nmlp_target_is_trainium(t->target)) return measure_all(t, dirs, n, ms, err);
    NMLP_RETURN_IF_FAILED(nmlp_machine_open(&machine, t->target, err));
    for (int i = 0; i < n; i++) NMLP_RETURN_IF_FAILED(simulate(t, &machine, dirs[i], &ms[i], err));
    return NMLP_OK;
}
