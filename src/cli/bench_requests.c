/* bench model with --prompt or --generate: requests of one model together, prompts and tokens apart. */
#include "bench/requests.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bench/model.h"
#include "cli/bench.h"

static const nmlp_column columns[] = {{"model", false},
                                      {"device", false},
                                      {"batch", false},
                                      {"prompt", false},
                                      {"generate", false},
                                      {"prefill_tok_s", false},
                                      {"prefill_tok_s_p10", true},
                                      {"prefill_tok_s_p90", true},
                                      {"prefill_share", false},
                                      {"prefill_share_p10", true},
                                      {"prefill_share_p90", true},
                                      {"decode_tok_s", false},
                                      {"decode_tok_s_p10", false},
                                      {"decode_tok_s_p90", false},
                                      {"decode_share", false},
                                      {"decode_share_p10", true},
                                      {"decode_share_p90", true},
                                      {"step_ms", false},
                                      {"first_ms", false},
                                      {"load_s", false},
                                      {"peer_prefill_tok_s", false},
                                      {"prefill_vs_peer", false},
                                      {"peer_prefill_test", true},
                                      {"peer_decode_tok_s", false},
                                      {"decode_vs_peer", false},
                                      {"peer_decode_test", true}};
enum { N_COLUMNS = sizeof columns / sizeof columns[0], LABEL_MAX = 32 };

/* Everything of one run. */
struct report {
    nmlp_bench_requests_result (*results)[NMLP_BENCH_REQUESTS_MAX]; /* [n_models] */
    const nmlp_bench_args *args;
    nmlp_bench_requests_options options;
    nmlp_peer_results peer;
};

static const nmlp_peer_result *peer_of(const struct report *r, int i, bool decode) {
    bool on_cpu = strncmp(r->results[0][i].device, "cuda", 4) != 0;
    return nmlp_peer_results_find(&r->peer,
                                  (nmlp_peer_test){.decode = decode,
                                                   .batch = r->options.batches[i],
                                                   .prompt = r->options.prompt,
                                                   .generate = r->options.generate,
                                                   .threads = on_cpu ? nmlp_pool_threads(r->options.pool) : 0});
}

/* Of what the device can do at best; nothing where that is not known. */
static void add_share(nmlp_table *table, const nmlp_spread *share) {
    const double values[] = {share->median, share->p10, share->p90};
    for (int i = 0; i < 3; i++) {
        if (share->median > 0)
            nmlp_table_number(table, values[i], 3);
        else
            nmlp_table_none(table);
    }
}

static void add_row(nmlp_table *table, const struct report *report, int model, int i) {
    const nmlp_bench_requests_options *o = &report->options;
    const nmlp_bench_requests_result *r = &report->results[model][i];
    nmlp_table_text(table, report->args->models[model]);
    nmlp_table_text(table, r->device);
    nmlp_table_number(table, (double)o->batches[i], 0);
    nmlp_table_number(table, (double)o->prompt, 0);
    nmlp_table_number(table, (double)o->generate, 0);
    nmlp_table_number(table, r->prefill_tokens_s.median, 0);
    nmlp_table_number(table, r->prefill_tokens_s.p10, 0);
    nmlp_table_number(table, r->prefill_tokens_s.p90, 0);
    add_share(table, &r->prefill_share);
    nmlp_table_number(table, r->decode_tokens_s.median, 1);
    nmlp_table_number(table, r->decode_tokens_s.p10, 1);
    nmlp_table_number(table, r->decode_tokens_s.p90, 1);
    add_share(table, &r->decode_share);
    nmlp_table_number(table, r->step_ms.median, 3);
    nmlp_table_number(table, r->first_ms, 1);
    nmlp_table_number(table, r->load_seconds, 2);
    if (!report->args->peer) return;
    nmlp_bench_peer_cells(table, peer_of(report, i, false), r->prefill_tokens_s.median);
    nmlp_bench_peer_cells(table, peer_of(report, i, true), r->decode_tokens_s.median);
}

/* One chart of prompts and one of generated tokens: a group for every number of sequences, a bar for every model. */
static nmlp_status draw(const struct report *report, nmlp_err *err) {
    enum { SERIES_MAX = NMLP_BENCH_MODELS_MAX + 1 }; /* the peer last */
    char labels[NMLP_BENCH_REQUESTS_MAX][LABEL_MAX];
    const char *groups[NMLP_BENCH_REQUESTS_MAX], *series[SERIES_MAX];
    double rates[2][SERIES_MAX * NMLP_BENCH_REQUESTS_MAX];
    int n = report->options.n_batches, n_models = report->args->n_models;
    for (int i = 0; i < n; i++) {
        snprintf(labels[i], sizeof labels[i], "x%lld", (long long)report->options.batches[i]);
        groups[i] = labels[i];
        for (int decode = 0; decode < 2; decode++) {
            for (int m = 0; m < n_models; m++) {
                const nmlp_bench_requests_result *r = &report->results[m][i];
                rates[decode][m * n + i] = decode ? r->decode_tokens_s.median : r->prefill_tokens_s.median;
            }
            const nmlp_peer_result *peer = peer_of(report, i, decode);
            rates[decode][n_models * n + i] = peer ? peer->tokens_s : 0;
        }
    }
    for (int m = 0; m < n_models; m++) {
        const char *slash = strrchr(report->args->models[m], '/');
        series[m] = slash && slash[1] ? slash + 1 : report->args->models[m];
    }
    series[n_models] = "peer";
    nmlp_chart charts[2];
    for (int decode = 0; decode < 2; decode++)
        charts[decode] = (nmlp_chart){.title = decode ? "Generated tokens" : "Prompts",
                                      .subtitle = "medians; sequences together",
                                      .y_label = "tokens/s",
                                      .categories = groups,
                                      .n_categories = (size_t)n,
                                      .series = series,
                                      .n_series = (size_t)(n_models + (report->args->peer != NULL)),
                                      .values = rates[decode]};
    return nmlp_bench_draw(charts, 2, report->args, err);
}

static nmlp_status read_options(nmlp_bench_requests_options *o, const nmlp_bench_args *args, nmlp_err *err) {
    int64_t *batches = NULL;
    size_t n = 0;
    NMLP_RETURN_IF_FAILED(nmlp_cli_parse_ints(&batches, &n, args->batch, "--batch", err));
    nmlp_status st = NMLP_OK;
    for (size_t i = 0; i < n && st == NMLP_OK; i++) {
        if (i >= NMLP_BENCH_REQUESTS_MAX || batches[i] < 1 || batches[i] > 4096)
            st = nmlp_fail(err, NMLP_E_ARG, "--batch takes up to %d numbers from 1 to 4096", NMLP_BENCH_REQUESTS_MAX);
        else
            o->batches[o->n_batches++] = batches[i];
    }
    nmlp_mem_free(batches);
    if (st == NMLP_OK && (o->prompt < 1 || o->generate < 1))
        st = nmlp_fail(err, NMLP_E_ARG, "--prompt and --generate must be 1 or more");
    return st;
}

static nmlp_status measure(struct report *report, nmlp_table *table, nmlp_err *err) {
    nmlp_bench_requests_options *o = &report->options;
    NMLP_RETURN_IF_FAILED(read_options(o, report->args, err));
    if (report->args->peer) NMLP_RETURN_IF_FAILED(nmlp_peer_results_load(&report->peer, report->args->peer, err));
    NMLP_RETURN_IF_FAILED(nmlp_pool_create(&o->pool, (int)report->args->n_threads, err));
    for (int m = 0; m < report->args->n_models; m++) {
        o->dir = report->args->models[m];
        NMLP_RETURN_IF_FAILED(nmlp_bench_requests_run(report->results[m], o, err));
        if (report->results[m][0].no_shares[0])
            fprintf(stderr, "note: %s: no shares: %s\n", o->dir, report->results[m][0].no_shares);
        for (int i = 0; i < o->n_batches; i++) add_row(table, report, m, i);
    }
    return NMLP_OK;
}

nmlp_status nmlp_bench_requests(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct report report = {.args = args,
                            .options = {.device = args->device,
                                        .isa = args->isa,
                                        .bf16 = strcmp(args->precision, "bf16") == 0,
                                        .prompt = args->prompt ? args->prompt : 128,
                                        .generate = args->generate ? args->generate : 64,
                                        .rounds = (int)args->rounds}};
    nmlp_table table;
    nmlp_table_init(&table, columns, N_COLUMNS - (args->peer ? 0 : 2 * NMLP_BENCH_PEER_CELLS));
    report.results = nmlp_mem_new((size_t)args->n_models, sizeof *report.results, err);
    if (!report.results) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(measure(&report, &table, err));
    NMLP_TRY(nmlp_bench_deliver(&table, args, json, err));
    NMLP_TRY(draw(&report, err));
out:
    nmlp_table_fini(&table);
    nmlp_pool_destroy(report.options.pool);
    nmlp_peer_results_fini(&report.peer);
    nmlp_mem_free(report.results);
    return st;
}
