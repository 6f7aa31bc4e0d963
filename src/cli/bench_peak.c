/* bench peak: arithmetic and read bandwidth of this machine, the yardsticks of the other benchmarks. */
#include "bench/peak.h"

#include <stdio.h>

#include "cli/bench.h"

static const nmlp_column columns[] = {{"probe", false},  {"threads", false}, {"unit", false},
                                      {"median", false}, {"p10", false},     {"p90", false}};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

static void add_row(nmlp_table *table, const nmlp_bench_peak_result *r, int n_threads) {
    nmlp_table_text(table, r->name);
    nmlp_table_number(table, n_threads, 0);
    nmlp_table_text(table, r->unit);
    if (r->rate.median > 0) {
        nmlp_table_number(table, r->rate.median, 1);
        nmlp_table_number(table, r->rate.p10, 1);
        nmlp_table_number(table, r->rate.p90, 1);
    } else { /* this CPU lacks it */
        for (int i = 0; i < 3; i++) nmlp_table_none(table);
    }
}

static nmlp_status draw(const nmlp_bench_peak_result *results, const nmlp_bench_args *args, nmlp_err *err) {
    const char *names[NMLP_BENCH_PEAKS];
    const char *series[] = {"median", "10th percentile", "90th percentile"};
    double values[3 * NMLP_BENCH_PEAKS];
    for (int i = 0; i < NMLP_BENCH_PEAKS; i++) {
        names[i] = results[i].name;
        values[i] = results[i].rate.median;
        values[NMLP_BENCH_PEAKS + i] = results[i].rate.p10;
        values[2 * NMLP_BENCH_PEAKS + i] = results[i].rate.p90;
    }
    nmlp_chart chart = {.title = "What this machine can do",
                        .subtitle = "all threads together",
                        .y_label = "GFLOP/s or GB/s",
                        .categories = names,
                        .n_categories = NMLP_BENCH_PEAKS,
                        .series = series,
                        .n_series = 3,
                        .values = values};
    return nmlp_bench_draw(&chart, 1, args, err);
}

static nmlp_status run(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_bench_peak_result results[NMLP_BENCH_PEAKS];
    nmlp_pool *pool = NULL;
    nmlp_table table;
    nmlp_table_init(&table, columns, N_COLUMNS);
    NMLP_TRY(nmlp_pool_create(&pool, (int)args->n_threads, err));
    NMLP_TRY(nmlp_bench_peak_run(results, pool, err));
    for (int i = 0; i < NMLP_BENCH_PEAKS; i++) add_row(&table, &results[i], nmlp_pool_threads(pool));
    NMLP_TRY(nmlp_bench_deliver(&table, args, json, err));
    NMLP_TRY(draw(results, args, err));
out:
    nmlp_table_fini(&table);
    nmlp_pool_destroy(pool);
    return st;
}

const nmlp_bench nmlp_bench_peak = {
    "peak", "what this machine can do: arithmetic, caches, memory", "csv svg", run, false, false};
