/* bench model: prefill and decode of whole models, the first one being what the others are compared with. */
#include "bench/model.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench.h"

enum { LABEL_MAX = 256 };

static const nmlp_column columns[] = {
    {"model", false},     {"phase", false},     {"isa", false},        {"threads", true},  {"tok_s", false},
    {"tok_s_p10", false}, {"tok_s_p90", false}, {"of_probe", false},   {"probe", true},    {"vs_first", false},
    {"ideal", false},     {"of_ideal", false},  {"peer_tok_s", false}, {"vs_peer", false}, {"peer_test", true}};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

/* Everything of one run. */
struct report {
    nmlp_bench_model_result results[NMLP_BENCH_MODELS_MAX];
    int n_models;
    int n_threads;
    bool has_peer;
    nmlp_peer_results peer;
};

static const nmlp_peer_result *peer_of(const struct report *r, const nmlp_bench_model_case *c) {
    return nmlp_peer_results_find(&r->peer, (nmlp_peer_test){.decode = c->prompt == 0,
                                                             .batch = c->batch,
                                                             .prompt = c->prompt,
                                                             .threads = c->probe > 0 ? r->n_threads : 0});
}

static void phase_text(char text[LABEL_MAX], const nmlp_bench_model_case *c) {
    if (c->prompt)
        snprintf(text, LABEL_MAX, "prefill %d", c->prompt);
    else if (c->batch > 1)
        snprintf(text, LABEL_MAX, "decode x%d", c->batch);
    else
        snprintf(text, LABEL_MAX, "decode");
}

static void add_row(nmlp_table *table, const struct report *report, const nmlp_bench_model_result *r,
                    const nmlp_bench_model_case *c) {
    char phase[LABEL_MAX];
    phase_text(phase, c);
    nmlp_table_text(table, r->dir);
    nmlp_table_text(table, phase);
    nmlp_table_text(table, r->device);
    nmlp_table_number(table, report->n_threads, 0);
    nmlp_table_number(table, c->tokens_s.median, 2);
    nmlp_table_number(table, c->tokens_s.p10, 2);
    nmlp_table_number(table, c->tokens_s.p90, 2);
    if (c->probe > 0) {
        nmlp_table_number(table, c->share.median, 3);
        nmlp_table_number(table, c->probe, 1);
    } else { /* another device than the CPU that is probed */
        nmlp_table_text(table, "");
        nmlp_table_text(table, "");
    }
    nmlp_table_number(table, c->speedup, 3);
    nmlp_table_number(table, c->ideal_speedup, 3);
    nmlp_table_number(table, c->speedup / c->ideal_speedup, 3);
    if (report->has_peer) nmlp_bench_peer_cells(table, peer_of(report, c), c->tokens_s.median);
}

static void fill_table(nmlp_table *table, const struct report *report) {
    const nmlp_bench_model_result *results = report->results;
    for (int which = 0; which < results[0].n_cases; which++)
        for (int i = 0; i < report->n_models; i++)
            if (results[i].cases[which].tokens_s.median > 0)
                add_row(table, report, &results[i], &results[i].cases[which]);
}

static void report_loading(const nmlp_bench_model_result *results, int n, nmlp_json_writer *json) {
    if (json) nmlp_json_begin_array(json, "loading");
    for (int i = 0; i < n; i++) {
        const nmlp_bench_model_result *r = &results[i];
        double rss_share = r->rss_bytes / (r->weight_bytes + r->cache_bytes);
        if (json) {
            nmlp_json_begin_object(json, NULL);
            nmlp_json_put_string(json, "model", r->dir);
            nmlp_json_put_number(json, "weight_bytes", r->weight_bytes);
            nmlp_json_put_number(json, "cache_bytes", r->cache_bytes);
            nmlp_json_put_number(json, "read_seconds", r->read_seconds);
            nmlp_json_put_number(json, "load_seconds", r->load_seconds);
            if (i == 0) nmlp_json_put_number(json, "peak_rss_bytes", r->rss_bytes);
            if (r->split[0]) nmlp_json_put_string(json, "split", r->split);
            if (r->split[0]) nmlp_json_put_number(json, "computed_ms", r->computed_ms);
            nmlp_json_end_object(json);
            continue;
        }
        printf("%s: %.2f GB of weights read in %.2f s, loaded and packed in %.2f s", r->dir, r->weight_bytes * 1e-9,
               r->read_seconds, r->load_seconds);
        if (i == 0) printf("; peak memory %.2f GB, %.2f x weights and cache", r->rss_bytes * 1e-9, rss_share);
        printf("\n");
        if (r->split[0]) printf("%s: %s\n", r->dir, r->split);
    }
    if (json) nmlp_json_end_array(json);
}

/* Only where the machine says what it uses. */
static void report_energy(const nmlp_bench_model_result *results, int n, nmlp_json_writer *json) {
    bool any = false;
    for (int i = 0; i < n; i++)
        for (int c = 0; c < results[i].n_cases; c++) any = any || results[i].cases[c].joules > 0;
    if (!any) return;
    if (json) nmlp_json_begin_array(json, "energy");
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < results[i].n_cases; c++) {
            char phase[LABEL_MAX];
            const nmlp_bench_model_case *one = &results[i].cases[c];
            if (!(one->joules > 0)) continue;
            phase_text(phase, one);
            if (json) {
                nmlp_json_begin_object(json, NULL);
                nmlp_json_put_string(json, "model", results[i].dir);
                nmlp_json_put_string(json, "phase", phase);
                nmlp_json_put_number(json, "joules_per_token", one->joules);
                nmlp_json_end_object(json);
            } else {
                printf("%s: %s takes %.4g J/token\n", results[i].dir, phase, one->joules);
            }
        }
    }
    if (json) nmlp_json_end_array(json);
}

static nmlp_status draw(const struct report *report, const nmlp_bench_args *args, nmlp_err *err) {
    enum { SERIES_MAX = NMLP_BENCH_MODELS_MAX + 1 }; /* the peer last */
    char phases[NMLP_BENCH_CASES_MAX][LABEL_MAX];
    const char *groups[NMLP_BENCH_CASES_MAX], *series[SERIES_MAX];
    double rate[SERIES_MAX * NMLP_BENCH_CASES_MAX];
    const nmlp_bench_model_result *results = report->results;
    int n = report->n_models;
    int n_cases = results[0].n_cases;
    for (int c = 0; c < n_cases; c++) {
        phase_text(phases[c], &results[0].cases[c]);
        groups[c] = phases[c];
        for (int i = 0; i < n; i++) rate[i * n_cases + c] = results[i].cases[c].tokens_s.median;
        const nmlp_peer_result *peer = peer_of(report, &results[0].cases[c]);
        rate[n * n_cases + c] = peer ? peer->tokens_s : 0;
    }
    series[n] = "peer";
    for (int i = 0; i < n; i++) {
        const char *slash = strrchr(results[i].dir, '/');
        series[i] = slash && slash[1] ? slash + 1 : results[i].dir;
    }
    nmlp_chart chart = {.title = "Whole models",
                        .subtitle = "medians; first model: what the others are compared with",
                        .y_label = "tokens/s",
                        .categories = groups,
                        .n_categories = (size_t)n_cases,
                        .series = series,
                        .n_series = (size_t)(n + report->has_peer),
                        .values = rate};
    return nmlp_bench_draw(&chart, 1, args, err);
}

static nmlp_status check(const nmlp_bench_args *args, nmlp_err *err) {
    if (args->n_models < 1 || args->n_models > NMLP_BENCH_MODELS_MAX)
        return nmlp_fail(err, NMLP_E_ARG, "bench model takes 1 to %d model directories", NMLP_BENCH_MODELS_MAX);
    if (strcmp(args->precision, "f32") != 0 && strcmp(args->precision, "bf16") != 0)
        return nmlp_fail(err, NMLP_E_ARG, "--precision %s is unknown, expected f32 or bf16", args->precision);
    if (args->rounds < 1 || args->rounds > NMLP_SAMPLES_MAX)
        return nmlp_fail(err, NMLP_E_ARG, "--rounds must be between 1 and %d", NMLP_SAMPLES_MAX);
    return NMLP_OK;
}

static nmlp_status check_batches(const int64_t *batches, size_t n, nmlp_err *err) {
    if (n > NMLP_BENCH_BATCHES_MAX)
        return nmlp_fail(err, NMLP_E_ARG, "--batch takes at most %d numbers", NMLP_BENCH_BATCHES_MAX);
    for (size_t i = 0; i < n; i++)
        if (batches[i] < 1 || batches[i] > NMLP_BENCH_BATCH_MAX)
            return nmlp_fail(err, NMLP_E_ARG, "--batch: %lld must be from 1 to %d", (long long)batches[i],
                             NMLP_BENCH_BATCH_MAX);
    return NMLP_OK;
}

static nmlp_status run(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct report report = {.n_models = args->n_models, .has_peer = args->peer != NULL};
    int64_t *batches = NULL;
    size_t n_batches = 0;
    nmlp_bench_model_options o = {.dirs = args->models,
                                  .n_models = args->n_models,
                                  .device = args->device,
                                  .isa = args->isa,
                                  .bf16 = strcmp(args->precision, "bf16") == 0,
                                  .rounds = (int)args->rounds,
                                  .tensor_group = args->tensor_group,
                                  .split = args->split};
    nmlp_table table;
    NMLP_RETURN_IF_FAILED(check(args, err));
    if (args->tensor_group && (args->prompt || args->generate))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "whole requests are timed in one process, %d were started",
                         args->tensor_group->size);
    if (args->prompt || args->generate) return nmlp_bench_requests(args, json, err);
    nmlp_table_init(&table, columns, N_COLUMNS - (report.has_peer ? 0 : NMLP_BENCH_PEER_CELLS));
    if (args->peer) NMLP_TRY(nmlp_peer_results_load(&report.peer, args->peer, err));
    NMLP_TRY(nmlp_cli_parse_ints(&batches, &n_batches, args->batch, "--batch", err));
    NMLP_TRY(check_batches(batches, n_batches, err));
    o.batches = batches;
    o.n_batches = (int)n_batches;
    NMLP_TRY(nmlp_pool_create(&o.pool, (int)args->n_threads, err));
    report.n_threads = nmlp_pool_threads(o.pool);
    NMLP_TRY(nmlp_bench_model_run(report.results, &o, err));
    if (!nmlp_group_leads(o.tensor_group)) goto out;
    fill_table(&table, &report);
    NMLP_TRY(nmlp_bench_deliver(&table, args, json, err));
    report_loading(report.results, o.n_models, json);
    report_energy(report.results, o.n_models, json);
    NMLP_TRY(draw(&report, args, err));
out:
    nmlp_peer_results_fini(&report.peer);
    nmlp_table_fini(&table);
    nmlp_pool_destroy(o.pool);
    nmlp_mem_free(batches);
    return st;
}

const nmlp_bench nmlp_bench_model = {
    "model",
    "prefill and decode of models, side by side",
    "isa precision device batch rounds prompt generate peer split network-us network-gbit csv svg",
    run,
    true,
    false};
