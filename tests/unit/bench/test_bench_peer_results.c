/* Results of other programs, in small files written here in their formats. */
#include "bench/peer_results.h"

#include "lib/testing.h"

static char folder[256];
static char path[300];

static nmlp_status load(nmlp_peer_results *r, const char *text, nmlp_err *err) {
    snprintf(path, sizeof path, "%s/peer", folder);
    nmlp_test_write_file(path, text, strlen(text));
    return nmlp_peer_results_load(r, path, err);
}

static double rate(const nmlp_peer_results *r, nmlp_peer_test test) {
    const nmlp_peer_result *row = nmlp_peer_results_find(r, test);
    return row ? row->tokens_s : 0;
}

static void llama_bench_csv_is_read(void **state) {
    static const char text[] =
        "build_commit,cpu_info,model_type,n_threads,n_prompt,n_gen,n_depth,avg_ns,avg_ts\r\n"
        "\"abc\",\"CPU, two \"\"cores\"\"\",\"llama 1B BF16\",\"2\",\"512\",\"0\",\"0\",\"9\",\"75.25\"\r\n"
        "\"abc\",\"CPU\",\"llama 1B BF16\",\"2\",\"0\",\"64\",\"0\",\"9\",\"7.5\"\r\n"
        "\"abc\",\"CPU\",\"llama 1B BF16\",\"16\",\"0\",\"64\",\"0\",\"9\",\"37\"\r\n"
        "\"abc\",\"CPU\",\"llama 1B BF16\",\"16\",\"512\",\"64\",\"0\",\"9\",\"99\"\r\n"
        "\"abc\",\"CPU\",\"llama 1B BF16\",\"16\",\"512\",\"0\",\"4096\",\"9\",\"98\"\r\n";
    nmlp_peer_results r;
    nmlp_err err = {0};
    char test[NMLP_PEER_TEST_MAX];
    (void)state;
    nmlp_assert_ok(load(&r, text, &err), &err);
    assert_int_equal(r.n, 3); /* without prompt and tokens as one, and without a prompt behind others */
    assert_true(rate(&r, (nmlp_peer_test){.batch = 1, .prompt = 512, .threads = 2}) == 75.25);
    assert_true(rate(&r, (nmlp_peer_test){.decode = true, .batch = 1, .generate = 32, .threads = 2}) == 7.5);
    assert_true(rate(&r, (nmlp_peer_test){.decode = true, .batch = 1, .generate = 32, .threads = 12}) == 37);
    assert_true(rate(&r, (nmlp_peer_test){.decode = true, .batch = 1}) == 37); /* no CPU: the fastest */
    assert_null(nmlp_peer_results_find(&r, (nmlp_peer_test){.batch = 1, .prompt = 128, .threads = 2}));
    assert_null(nmlp_peer_results_find(&r, (nmlp_peer_test){.decode = true, .batch = 8}));
    nmlp_peer_result_describe(test, nmlp_peer_results_find(&r, (nmlp_peer_test){.decode = true, .batch = 1}));
    assert_string_equal(test, "llama 1B BF16 tg64 t16");
    nmlp_peer_results_fini(&r);
}

static void llama_bench_json_is_read(void **state) {
    static const char text[] =
        "[\n  {\"model_type\": \"llama 1B Q8_0\", \"n_threads\": 4, \"n_prompt\": 0, \"n_gen\": 128, \"n_depth\": 256,"
        " \"avg_ts\": 824.5, \"samples_ts\": [ 824, 825 ]},\n"
        "  {\"model_type\": \"llama 1B Q8_0\", \"n_prompt\": 2048, \"n_gen\": 0, \"avg_ts\": 51700.0}\n]\n";
    nmlp_peer_results r;
    nmlp_err err = {0};
    char test[NMLP_PEER_TEST_MAX];
    (void)state;
    nmlp_assert_ok(load(&r, text, &err), &err);
    assert_int_equal(r.n, 2);
    assert_true(rate(&r, (nmlp_peer_test){.batch = 1, .prompt = 2048}) == 51700);
    nmlp_peer_result_describe(test, nmlp_peer_results_find(&r, (nmlp_peer_test){.decode = true, .batch = 1}));
    assert_string_equal(test, "llama 1B Q8_0 tg128 d256 t4");
    nmlp_peer_results_fini(&r);
}

static void batched_bench_lines_are_read(void **state) {
    static const char text[] =
        "main: n_kv_max = 16384, n_batch = 2048\n\n"
        "{\"n_kv_max\": 16384, \"n_threads\": 8, \"pp\": 128, \"tg\": 64, \"pl\": 1, \"n_kv\": 192, \"t_pp\": 0.01, "
        "\"speed_pp\": 12800.0, \"t_tg\": 0.08, \"speed_tg\": 736.0, \"t\": 0.09, \"speed\": 2100.0}\n"
        "{\"n_kv_max\": 16384, \"n_threads\": 8, \"pp\": 128, \"tg\": 64, \"pl\": 8, \"speed_pp\": 60000.0, "
        "\"speed_tg\": 4122.0}\n"
        "{\"n_kv_max\": 16384, \"n_threads\": 8, \"pp\": 1024, \"tg\": 64, \"pl\": 8, \"speed_pp\": 61000.0, "
        "\"speed_tg\": 3900.0}\n";
    nmlp_peer_results r;
    nmlp_err err = {0};
    char test[NMLP_PEER_TEST_MAX];
    nmlp_peer_test decode8 = {.decode = true, .batch = 8, .prompt = 128, .generate = 64};
    (void)state;
    nmlp_assert_ok(load(&r, text, &err), &err);
    assert_int_equal(r.n, 6);
    assert_true(rate(&r, decode8) == 4122);
    assert_true(rate(&r, (nmlp_peer_test){.decode = true, .batch = 8, .prompt = 900, .generate = 64}) == 3900);
    assert_true(rate(&r, (nmlp_peer_test){.batch = 8, .prompt = 128, .generate = 64}) == 60000);
    nmlp_peer_result_describe(test, nmlp_peer_results_find(&r, decode8));
    assert_string_equal(test, "tg64 d128 x8 t8");
    nmlp_peer_results_fini(&r);
}

static void what_is_wrong_is_named(void **state) {
    nmlp_peer_results r;
    nmlp_err err = {0};
    (void)state;
    nmlp_assert_fails(load(&r, "", &err), &err, NMLP_E_FORMAT, "peer", "no result", NULL);
    nmlp_assert_fails(load(&r, "a,b\n1,2\n", &err), &err, NMLP_E_FORMAT, "result 2", "n_prompt", NULL);
    nmlp_assert_fails(load(&r, "n_prompt,n_gen,avg_ts\n1,0\n", &err), &err, NMLP_E_FORMAT, "line 2", "2 fields", NULL);
    nmlp_assert_fails(load(&r, "n_prompt,n_gen,avg_ts\n1,0,fast\n", &err), &err, NMLP_E_FORMAT, "avg_ts", "fast", NULL);
    nmlp_assert_fails(load(&r, "n_prompt,n_gen,avg_ts\n1,0,nan\n", &err), &err, NMLP_E_FORMAT, "avg_ts", NULL);
    nmlp_assert_fails(load(&r, "n_prompt,n_gen,avg_ts\n-5,0,1\n", &err), &err, NMLP_E_FORMAT, "n_prompt", NULL);
    nmlp_assert_fails(load(&r, "[1]", &err), &err, NMLP_E_FORMAT, "result 1", "object", NULL);
    nmlp_assert_fails(load(&r, "{\"pp\": \"x\"}\n", &err), &err, NMLP_E_FORMAT, "pp", "number", NULL);
    assert_int_not_equal(load(&r, "[{\"n_prompt\": 1,", &err), NMLP_OK);
    assert_null(r.rows);
    nmlp_assert_fails(nmlp_peer_results_load(&r, "/nowhere/at/all", &err), &err, NMLP_E_IO, "/nowhere", NULL);
}

static int set_up(void **state) {
    (void)state;
    nmlp_test_mkdtemp(folder, sizeof folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    nmlp_test_rmdir(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_bench_csv_is_read),
        cmocka_unit_test(llama_bench_json_is_read),
        cmocka_unit_test(batched_bench_lines_are_read),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
