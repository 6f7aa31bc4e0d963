#include <stdio.h>

#include "base/file.h"
#include "cli/bench.h"

static nmlp_status write_text(const char *path, const nmlp_str *text, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_str_status(text, err));
    return nmlp_file_write_text(path, nmlp_str_text(text), text->len, err);
}

void nmlp_bench_peer_cells(nmlp_table *table, const nmlp_peer_result *peer, double ours) {
    char test[NMLP_PEER_TEST_MAX];
    if (!peer) {
        for (int i = 0; i < NMLP_BENCH_PEER_CELLS; i++) nmlp_table_none(table);
        return;
    }
    nmlp_peer_result_describe(test, peer);
    nmlp_table_number(table, peer->tokens_s, 2);
    nmlp_table_number(table, ours / peer->tokens_s, 2);
    nmlp_table_text(table, test);
}

nmlp_status nmlp_bench_deliver(const nmlp_table *table, const nmlp_bench_args *args, nmlp_json_writer *json,
                               nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_str text;
    nmlp_str_init(&text);
    NMLP_TRY(nmlp_table_status(table, err));
    if (json) {
        nmlp_table_json(table, "results", json);
    } else {
        nmlp_table_print(table, &text);
        fputs(nmlp_str_text(&text), stdout);
    }
    if (args->csv) {
        nmlp_str_clear(&text);
        nmlp_table_csv(table, &text);
        NMLP_TRY(write_text(args->csv, &text, err));
    }
out:
    nmlp_str_fini(&text);
    return st;
}

nmlp_status nmlp_bench_draw(const nmlp_chart *charts, size_t n_charts, const nmlp_bench_args *args, nmlp_err *err) {
    nmlp_str text;
    if (!args->svg) return NMLP_OK;
    nmlp_str_init(&text);
    nmlp_chart_write_file(charts, n_charts, &text);
    nmlp_status st = write_text(args->svg, &text, err);
    nmlp_str_fini(&text);
    return st;
}
