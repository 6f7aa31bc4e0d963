/* Suites: what is absent is named, finished results are not run again, changed ones are. Uses the built-in model. */
#include <math.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "eval/suite.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"

#define TINY NMLP_TEST_ROOT "/models/tiny"

enum { WIKITEXT2 = 0, PTB = 1, OBQA = 4 }; /* in the suite "paper" */

struct fixture {
    char dir[256];
    char state_path[300];
    char data_path[300];
    loaded_engine l;
    nmlp_tokenizer *t;
    int n_updates;
};

static void write_questions(struct fixture *f, const char *last) {
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_str_puts(&text, "{\"question\":\"The cat sat on\",\"choices\":[\"the mat\",\"of of\"],\"gold\":0}\n");
    nmlp_str_printf(&text, "{\"question\":\"He went\",\"choices\":[\"home\",\"%s\"],\"gold\":0}\n", last);
    nmlp_test_write_file(f->data_path, text.data, text.len);
    nmlp_str_fini(&text);
}

static int setup(void **state) {
    struct fixture *f = nmlp_mem_new(1, sizeof *f, NULL);
    char path[300];
    nmlp_err err;
    const char text[] = "The old house stood at the end of the lane, and nobody had lived in it for many years.\n";
    nmlp_test_mkdtemp(f->dir, sizeof f->dir);
    snprintf(f->state_path, sizeof f->state_path, "%s/state.json", f->dir);
    snprintf(f->data_path, sizeof f->data_path, "%s/openbookqa_test.jsonl", f->dir);
    snprintf(path, sizeof path, "%s/wikitext2.test.txt", f->dir);
    nmlp_test_write_file(path, text, strlen(text));
    write_questions(f, "xqz");
    nmlp_assert_ok(nmlp_tokenizer_load(&f->t, TINY, &err), &err);
    loaded_engine_open(&f->l, TINY, NULL, 2);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    loaded_engine_close(&f->l);
    nmlp_tokenizer_destroy(f->t);
    nmlp_test_rmdir(f->dir);
    nmlp_mem_free(f);
    return 0;
}

static bool count(void *ctx, const char *stage, double done, double total, const char *unit) {
    struct fixture *f = ctx;
    (void)stage;
    (void)unit;
    assert_true(done <= total);
    f->n_updates++;
    return true;
}

/* Runs the suite with the state file; returns how often the engine reported work. */
static int run(struct fixture *f, nmlp_suite_row *row) {
    nmlp_eval_state state;
    nmlp_err err;
    nmlp_progress progress = {.update = count, .ctx = f};
    *row = (nmlp_suite_row){.model = "tiny"};
    f->n_updates = 0;
    nmlp_assert_ok(nmlp_eval_state_open(&state, f->state_path, &err), &err);
    nmlp_suite_options o = {.data_dir = f->dir, .state = &state, .progress = &progress};
    nmlp_assert_ok(nmlp_suite_run(row, nmlp_suite_find("paper"), f->l.engine, f->t, &o, &err), &err);
    nmlp_eval_state_close(&state);
    return f->n_updates;
}

static void absent_files_are_skipped_with_a_note(void **state) {
    struct fixture *f = *state;
    static nmlp_suite_row row;
    assert_true(run(f, &row) > 0);
    assert_true(row.cells[WIKITEXT2].present && row.cells[OBQA].present);
    assert_false(row.cells[PTB].present);
    assert_non_null(strstr(row.cells[PTB].note, "ptb.test.txt"));
    assert_int_equal(row.cells[OBQA].n, 2);
    assert_true(nmlp_suite_mean_acc(&row, nmlp_suite_find("paper"), false) == row.cells[OBQA].acc);
}

static void a_second_run_takes_what_was_had(void **state) {
    struct fixture *f = *state;
    static nmlp_suite_row first, second;
    run(f, &first);
    assert_int_equal(run(f, &second), 0);
    assert_true(second.cells[WIKITEXT2].resumed && second.cells[OBQA].resumed);
    assert_true(fabs(second.cells[WIKITEXT2].ppl - first.cells[WIKITEXT2].ppl) < 1e-9);
    assert_true(second.cells[OBQA].acc == first.cells[OBQA].acc && second.cells[OBQA].n == 2);
}

static void changed_data_or_protocol_runs_again(void **state) {
    struct fixture *f = *state;
    static nmlp_suite_row row;
    nmlp_eval_state s;
    nmlp_err err;
    run(f, &row);
    write_questions(f, "qqq");
    assert_true(run(f, &row) > 0);
    assert_false(row.cells[OBQA].resumed);
    assert_true(row.cells[WIKITEXT2].resumed);
    nmlp_assert_ok(nmlp_eval_state_open(&s, f->state_path, &err), &err);
    nmlp_suite_options o = {.data_dir = f->dir, .state = &s, .limit = 1, .max_tokens = 7};
    nmlp_assert_ok(nmlp_suite_run(&row, nmlp_suite_find("paper"), f->l.engine, f->t, &o, &err), &err);
    assert_false(row.cells[OBQA].resumed || row.cells[WIKITEXT2].resumed);
    assert_int_equal(row.cells[OBQA].n, 1);
    assert_int_equal(row.cells[WIKITEXT2].n, 7);
    nmlp_eval_state_close(&s);
}

static void a_file_that_is_no_state_is_refused(void **state) {
    struct fixture *f = *state;
    char path[300];
    nmlp_eval_state s;
    nmlp_err err;
    snprintf(path, sizeof path, "%s/other.json", f->dir);
    nmlp_test_write_file(path, "{\"a\":1}", 7);
    nmlp_assert_fails(nmlp_eval_state_open(&s, path, &err), &err, NMLP_E_FORMAT, "other.json", "not the state", NULL);
    nmlp_test_write_file(path, "{", 1);
    nmlp_assert_fails(nmlp_eval_state_open(&s, path, &err), &err, NMLP_E_FORMAT, "other.json", "JSON", NULL);
    const char bad[] = "{\"format\":\"neuronmlp-eval-state-1\",\"results\":{\"k\":{\"n\":1}}}";
    nmlp_test_write_file(path, bad, strlen(bad));
    nmlp_assert_fails(nmlp_eval_state_open(&s, path, &err), &err, NMLP_E_MISSING, "acc", NULL);
}

static void tables_hold_every_model_and_the_mean(void **state) {
    const nmlp_suite *suite = nmlp_suite_find("paper");
    static nmlp_suite_row rows[2];
    nmlp_str out;
    (void)state;
    for (int r = 0; r < 2; r++) {
        rows[r].model = r ? "small,2" : "dense";
        for (size_t i = 0; i < suite->n_items; i++) {
            rows[r].cells[i] = (nmlp_eval_cell){.present = true,
                                                .is_ppl = suite->items[i].is_ppl,
                                                .n = 10,
                                                .ppl = 68.5564 + r,
                                                .acc = 0.25 * (r + 1),
                                                .acc_stderr = 0.0123,
                                                .acc_norm = 0.5,
                                                .acc_norm_stderr = 0.02};
        }
    }
    nmlp_str_init(&out);
    nmlp_suite_table(&out, suite, rows, 2, NMLP_TABLE_TEXT);
    assert_non_null(strstr(out.data, "wikitext2      ppl      68.556          69.556\n"));
    assert_non_null(strstr(out.data, "hellaswag      acc      25.00 ± 1.23    50.00 ± 1.23\n"));
    assert_non_null(strstr(out.data, "mean           acc      25.00           50.00\n"));
    nmlp_str_clear(&out);
    nmlp_suite_table(&out, suite, rows, 2, NMLP_TABLE_MARKDOWN);
    assert_non_null(
        strstr(out.data,
               "| data set | metric | dense | small,2 |\n|---|---|---|---|\n| wikitext2 | ppl | 68.556 | 69.556 |\n"));
    nmlp_str_clear(&out);
    rows[1].cells[PTB].present = false;
    nmlp_suite_table(&out, suite, rows, 2, NMLP_TABLE_CSV);
    assert_non_null(strstr(out.data, "data set,metric,dense,\"small,2\"\n"));
    assert_non_null(strstr(out.data, "ptb,ppl,68.5564,\n"));
    assert_non_null(strstr(out.data, "piqa,acc_stderr,0.0123,0.0123\n"));
    nmlp_str_fini(&out);
}

static void hashes_are_of_the_files(void **state) {
    struct fixture *f = *state;
    nmlp_provenance p;
    nmlp_err err;
    char hash[NMLP_HASH_TEXT];
    nmlp_assert_ok(nmlp_provenance_read(&p, f->l.engine, &err), &err);
    nmlp_assert_ok(nmlp_file_hash(hash, TINY "/tokenizer.json", &err), &err);
    assert_string_equal(p.tokenizer_hash, hash);
    assert_int_equal(strlen(p.model_hash), 16);
    assert_string_not_equal(p.model_hash, p.tokenizer_hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(absent_files_are_skipped_with_a_note, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_run_takes_what_was_had, setup, teardown),
        cmocka_unit_test_setup_teardown(changed_data_or_protocol_runs_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_no_state_is_refused, setup, teardown),
        cmocka_unit_test(tables_hold_every_model_and_the_mean),
        cmocka_unit_test_setup_teardown(hashes_are_of_the_files, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
