/* bench mlp: the gated MLP of one shape, dense and low rank, by this library and its peers. */
#include "bench/mlp.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench.h"

enum { PEERS_MAX = 8, TYPES_MAX = 5, LABEL_MAX = 64 };

static const nmlp_column columns[] = {{"by", false},
                                      {"hidden", true},
                                      {"inner", true},
                                      {"rank", false},
                                      {"rows", false},
                                      {"threads", true},
                                      {"samples", false},
                                      {"ms", false},
                                      {"ms_p10", false},
                                      {"ms_p90", false},
                                      {"rate", false},
                                      {"unit", false},
                                      {"of_probe", false},
                                      {"of_probe_p10", true},
                                      {"of_probe_p90", true},
                                      {"probe", true},
                                      {"quiet", true},
                                      {"of_probe_quiet", true},
                                      {"of_probe_contended", true},
                                      {"vs_dense", false},
                                      {"ideal", false},
                                      {"ours_faster", false},
                                      {"note", true}};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

struct request {
    nmlp_bench_mlp_options options;
    int64_t *shape; /* H, I, ranks */
    int64_t *rows;
    const nmlp_peer_maker *peers[PEERS_MAX];
    nmlp_bench_weight_type types[TYPES_MAX];
};

static nmlp_status check_counts(const int64_t *values, size_t n, const char *what, nmlp_err *err) {
    for (size_t i = 0; i < n; i++)
        if (values[i] < 1 || values[i] > 1 << 20)
            return nmlp_fail(err, NMLP_E_ARG, "%s: %lld is not between 1 and %d", what, (long long)values[i], 1 << 20);
    return NMLP_OK;
}

static bool in_list(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == '\0')) return true;
    return false;
}

static nmlp_status find_peers(struct request *rq, const char *list, nmlp_err *err) {
    const nmlp_peer_maker *makers;
    nmlp_str names;
    if (!list) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_peer_module_open(&makers, nmlp_pool_threads(rq->options.pool), err));
    nmlp_str_init(&names);
    for (; makers->name; makers++) {
        nmlp_str_printf(&names, ", %s", makers->name);
        bool wanted = strcmp(list, "all") == 0 || in_list(list, makers->name);
        if (wanted && rq->options.n_peers < PEERS_MAX) rq->peers[rq->options.n_peers++] = makers;
    }
    nmlp_status st = NMLP_OK;
    if (rq->options.n_peers == 0)
        st =
            nmlp_fail(err, NMLP_E_ARG, "--peers: none of \"%s\" is known, expected all%s", list, nmlp_str_text(&names));
    nmlp_str_fini(&names);
    return st;
}

static nmlp_status parse_types(struct request *rq, const char *list, nmlp_err *err) {
    nmlp_bench_mlp_options *o = &rq->options;
    o->types = rq->types;
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char name[LABEL_MAX];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        const nmlp_bench_weight_type *type = nmlp_bench_weight_type_of(name);
        if (!type || o->n_types == TYPES_MAX)
            return nmlp_fail(err, NMLP_E_ARG,
                             "--dtype: \"%s\" is not f32, bf16, q8, q4, q4-64, q4z, q4z-64 or q4m, or one too many",
                             name);
        rq->types[o->n_types++] = *type;
    }
    return NMLP_OK;
}

static nmlp_status parse(struct request *rq, const nmlp_bench_args *args, nmlp_err *err) {
    nmlp_bench_mlp_options *o = &rq->options;
    const nmlp_cpu *cpu = nmlp_cpu_get();
    size_t n = 0;
    NMLP_RETURN_IF_FAILED(nmlp_cli_parse_ints(&rq->shape, &n, args->shape, "--shape", err));
    if (n < 2) return nmlp_fail(err, NMLP_E_ARG, "--shape: \"%s\" is not H,I and ranks", args->shape);
    NMLP_RETURN_IF_FAILED(check_counts(rq->shape, n, "--shape", err));
    NMLP_RETURN_IF_FAILED(nmlp_cli_parse_ints(&rq->rows, &o->n_rows, args->rows, "--rows", err));
    NMLP_RETURN_IF_FAILED(check_counts(rq->rows, o->n_rows, "--rows", err));
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select_bf16(&o->kernels, cpu, args->isa, err));
    o->hidden = rq->shape[0];
    o->inner = rq->shape[1];
    o->ranks = rq->shape + 2;
    o->n_ranks = n - 2;
    o->rows = rq->rows;
    o->peers = rq->peers;
    NMLP_RETURN_IF_FAILED(parse_types(rq, args->dtypes, err));
    o->seconds = args->seconds;
    NMLP_RETURN_IF_FAILED(nmlp_pool_create(&o->pool, (int)args->n_threads, err));
    return find_peers(rq, args->peers, err);
}

static void add_spread(nmlp_table *table, const nmlp_spread *spread, int decimals) {
    nmlp_table_number(table, spread->median, decimals);
    nmlp_table_number(table, spread->p10, decimals);
    nmlp_table_number(table, spread->p90, decimals);
}

static void add_or_none(nmlp_table *table, double value, int decimals) {
    if (value > 0)
        nmlp_table_number(table, value, decimals);
    else
        nmlp_table_none(table);
}

static void rank_text(char text[LABEL_MAX], int64_t rank) {
    if (rank)
        snprintf(text, LABEL_MAX, "%lld", (long long)rank);
    else
        snprintf(text, LABEL_MAX, "dense");
}

static void add_row(nmlp_table *table, const nmlp_bench_mlp_options *o, const nmlp_bench_mlp_result *r) {
    char rank[LABEL_MAX];
    rank_text(rank, r->rank);
    nmlp_table_text(table, r->name);
    nmlp_table_number(table, (double)o->hidden, 0);
    nmlp_table_number(table, (double)o->inner, 0);
    nmlp_table_text(table, rank);
    nmlp_table_number(table, (double)r->rows, 0);
    nmlp_table_number(table, nmlp_pool_threads(o->pool), 0);
    nmlp_table_number(table, r->n_samples, 0);
    if (r->n_samples == 0) {
        for (int i = 7; i < N_COLUMNS - 1; i++) nmlp_table_none(table);
    } else {
        add_spread(table, &r->ms, 3);
        nmlp_table_number(table, r->rate.median, 1);
        nmlp_table_text(table, r->cold ? "GB/s" : "GFLOP/s");
        add_spread(table, &r->share, 3);
        nmlp_table_number(table, r->probe, 1);
        nmlp_table_number(table, r->n_quiet, 0);
        add_or_none(table, r->share_quiet, 3);
        add_or_none(table, r->share_contended, 3);
        add_or_none(table, r->speedup, 2);
        nmlp_table_number(table, r->ideal_speedup, 2);
        add_or_none(table, r->ours_faster, 2);
    }
    nmlp_table_text(table, r->note);
}

/* The plan of this library, and who was not timed. */
static void print_notes(const nmlp_bench_mlp_result *results, size_t n) {
    char rank[LABEL_MAX];
    for (size_t i = 0; i < n; i++) {
        if (!results[i].note[0]) continue;
        rank_text(rank, results[i].rank);
        printf("%s, %s, %lld rows: %s\n", results[i].name, rank, (long long)results[i].rows, results[i].note);
    }
}

/* One group of bars per number of rows, one bar per subject. */
static nmlp_status draw(const nmlp_bench_mlp_options *o, const nmlp_bench_mlp_result *results, size_t n,
                        const nmlp_bench_args *args, nmlp_err *err) {
    enum { BARS_MAX = 16, GROUPS_MAX = 16 };
    char labels[BARS_MAX + GROUPS_MAX][LABEL_MAX];
    const char *series[BARS_MAX], *groups[GROUPS_MAX];
    double ms[BARS_MAX * GROUPS_MAX], share[BARS_MAX * GROUPS_MAX];
    char subtitle[LABEL_MAX * 2], rank[LABEL_MAX];
    size_t n_bars = n / o->n_rows < BARS_MAX ? n / o->n_rows : BARS_MAX;
    size_t n_groups = o->n_rows < GROUPS_MAX ? o->n_rows : GROUPS_MAX;
    for (size_t g = 0; g < n_groups; g++) {
        groups[g] = labels[BARS_MAX + g];
        snprintf(labels[BARS_MAX + g], LABEL_MAX, "%lld rows", (long long)o->rows[g]);
        for (size_t b = 0; b < n_bars; b++) {
            const nmlp_bench_mlp_result *r = &results[g * (n / o->n_rows) + b];
            rank_text(rank, r->rank);
            series[b] = labels[b];
            snprintf(labels[b], LABEL_MAX, "%s %.20s", r->name, rank);
            ms[b * n_groups + g] = r->ms.median;
            share[b * n_groups + g] = r->share.median;
        }
    }
    snprintf(subtitle, sizeof subtitle, "gated MLP, H %lld, I %lld, %d threads; medians", (long long)o->hidden,
             (long long)o->inner, nmlp_pool_threads(o->pool));
    nmlp_chart times = {.title = "Time",
                        .subtitle = subtitle,
                        .y_label = "ms",
                        .categories = groups,
                        .n_categories = n_groups,
                        .series = series,
                        .n_series = n_bars,
                        .values = ms};
    nmlp_chart shares = times;
    shares.title = "Share of the probe (up to 16 rows: memory, above: arithmetic)";
    shares.y_label = "share";
    shares.values = share;
    shares.from_zero = true;
    nmlp_chart charts[2] = {times, shares};
    return nmlp_bench_draw(charts, 2, args, err);
}

static nmlp_status run(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct request rq = {0};
    nmlp_bench_mlp_result *results = NULL;
    size_t n = 0;
    nmlp_table table;
    nmlp_table_init(&table, columns, N_COLUMNS);
    NMLP_TRY(parse(&rq, args, err));
    if (!json)
        printf("gated MLP, H %lld, I %lld, %s weights, %d threads; of_probe: share of the machine's rate measured "
               "around each sample\n",
               (long long)rq.options.hidden, (long long)rq.options.inner, args->dtypes,
               nmlp_pool_threads(rq.options.pool));
    NMLP_TRY(nmlp_bench_mlp_run(&results, &n, &rq.options, err));
    for (size_t i = 0; i < n; i++) add_row(&table, &rq.options, &results[i]);
    NMLP_TRY(nmlp_bench_deliver(&table, args, json, err));
    if (!json) print_notes(results, n);
    NMLP_TRY(draw(&rq.options, results, n, args, err));
out:
    nmlp_mem_free(results);
    nmlp_table_fini(&table);
    nmlp_pool_destroy(rq.options.pool);
    nmlp_mem_free(rq.shape);
    nmlp_mem_free(rq.rows);
    return st;
}

const nmlp_bench nmlp_bench_mlp = {"mlp",
                                   "the fused gated MLP, low rank and dense, on this CPU",
                                   "shape rows dtype isa peers seconds csv svg",
                                   run,
                                   false,
                                   false};
