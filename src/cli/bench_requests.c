/* bench model with --prompt or --generate: requests of one model together, prompts and tokens apart. */
#include "bench/requests.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench.h"

static const nmlp_column columns[] = {{"model", false},
                                      {"device", false},
                                      {"batch", false},
                                      {"prompt", false},
                                      {"generate", false},
                                      {"prefill_tok_s", false},
                                      {"prefill_tok_s_p10", true},
                                      {"prefill_tok_s_p90", true},
                                      {"decode_tok_s", false},
                                      {"decode_tok_s_p10", false},
                                      {"decode_tok_s_p90", false},
                                      {"step_ms", false},
                                      {"first_ms", false},
                                      {"load_s", false}};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

static void add_row(nmlp_table *table, const nmlp_bench_requests_options *o, int i,
                    const nmlp_bench_requests_result *r) {
    nmlp_table_text(table, o->dir);
    nmlp_table_text(table, r->device);
    nmlp_table_number(table, (double)o->batches[i], 0);
    nmlp_table_number(table, (double)o->prompt, 0);
    nmlp_table_number(table, (double)o->generate, 0);
    nmlp_table_number(table, r->prefill_tokens_s.median, 0);
    nmlp_table_number(table, r->prefill_tokens_s.p10, 0);
    nmlp_table_number(table, r->prefill_tokens_s.p90, 0);
    nmlp_table_number(table, r->decode_tokens_s.median, 1);
    nmlp_table_number(table, r->decode_tokens_s.p10, 1);
    nmlp_table_number(table, r->decode_tokens_s.p90, 1);
    nmlp_table_number(table, r->step_ms.median, 3);
    nmlp_table_number(table, r->first_ms, 1);
    nmlp_table_number(table, r->load_seconds, 2);
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

nmlp_status nmlp_bench_requests(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_bench_requests_result results[NMLP_BENCH_REQUESTS_MAX];
    nmlp_bench_requests_options o = {.device = args->device,
                                     .isa = args->isa,
                                     .bf16 = strcmp(args->precision, "bf16") == 0,
                                     .prompt = args->prompt ? args->prompt : 128,
                                     .generate = args->generate ? args->generate : 64,
                                     .rounds = (int)args->rounds};
    nmlp_table table;
    nmlp_table_init(&table, columns, N_COLUMNS);
    NMLP_TRY(read_options(&o, args, err));
    NMLP_TRY(nmlp_pool_create(&o.pool, (int)args->n_threads, err));
    for (int m = 0; m < args->n_models; m++) {
        o.dir = args->models[m];
        NMLP_TRY(nmlp_bench_requests_run(results, &o, err));
        for (int i = 0; i < o.n_batches; i++) add_row(&table, &o, i, &results[i]);
    }
    NMLP_TRY(nmlp_bench_deliver(&table, args, json, err));
out:
    nmlp_table_fini(&table);
    nmlp_pool_destroy(o.pool);
    return st;
}
