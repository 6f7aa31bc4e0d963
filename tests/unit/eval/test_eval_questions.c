/* Prompts of every task, from our rows and from the authors' files, against strings written by hand after the harness's
 * YAML files. */
#include "eval/questions.h"
#include "lib/testing.h"

struct want {
    const char *task;
    const char *row;
    const char *context;      /* of choice 1 */
    const char *continuation; /* of choice 1 */
    int64_t norm_bytes;       /* of choice 1 */
    int64_t n_choices;
    int64_t gold;
};

static const struct want wants[] = {
    {"arc_easy", "{\"id\":0,\"question\":\"Why?\",\"choices\":[\"x\",\"yes \\u00e9\"],\"gold\":1}",
     "Question: Why?\nAnswer:", " yes \xc3\xa9", 6, 2, 1},
    {"arc_challenge",
     "{\"id\":\"M_7\",\"question\":{\"stem\":\"Why?\",\"choices\":[{\"text\":\"x\",\"label\":\"1\"},{\"text\":\"y\","
     "\"label\":\"2\"},"
     "{\"text\":\"z\",\"label\":\"3\"}]},\"answerKey\":\"3\"}",
     "Question: Why?\nAnswer:", " y", 1, 3, 2},
    {"arc_easy",
     "{\"id\":\"a\",\"question\":\"Why?\",\"choices\":{\"text\":[\"x\",\"y\"],\"label\":[\"A\",\"B\"]},\"answerKey\":"
     "\"B\"}",
     "Question: Why?\nAnswer:", " y", 1, 2, 1},
    {"openbookqa",
     "{\"id\":\"8-1\",\"question\":{\"stem\":\"Fog is found near\",\"choices\":[{\"text\":\"a marsh\",\"label\":\"A\"},"
     "{\"text\":\"the moon\",\"label\":\"B\"}]},\"answerKey\":\"A\"}",
     "Fog is found near", " the moon", 8, 2, 0},
    {"openbookqa",
     "{\"question_stem\":\"Fog is "
     "near\",\"choices\":{\"text\":[\"a\",\"b\"],\"label\":[\"A\",\"B\"]},\"answerKey\":\"B\"}",
     "Fog is near", " b", 1, 2, 1},
    {"hellaswag", "{\"id\":0,\"question\":\"Roof: A man [x]. he\",\"choices\":[\"is.\",\"rips [y].\"],\"gold\":0}",
     "Roof: A man [x]. he", " rips [y].", 9, 2, 0}, /* ours is ready as it is */
    {"hellaswag",
     "{\"ind\":24,\"activity_label\":\"Roof removal\",\"ctx_a\":\"A man is on a roof.\",\"ctx_b\":\"he\",\"ctx\":\"A "
     "man is on a roof. "
     "he\",\"endings\":[\"is wrapping.\",\"is ripping [step] tiles off. \"],\"label\":\"1\",\"split\":\"val\"}",
     "Roof removal: A man is on a roof. He", " is ripping tiles off.", 21, 2, 1},
    {"piqa", "{\"goal\":\"Open it\",\"sol1\":\"pull\",\"sol2\":\"push \",\"label\":1}",
     "Question: Open it\nAnswer:", " push ", 5, 2, 1},
    {"winogrande",
     "{\"qID\":\"3\",\"sentence\":\"Sarah was better than Maria so _ got the easier "
     "cases.\",\"option1\":\"Sarah\",\"option2\":\"Maria\","
     "\"answer\":\"2\"}",
     "Sarah was better than Maria so Maria", " got the easier cases.", 21, 2, 1},
    {"winogrande", "{\"question\":\"so _ won.\",\"choices\":[\"A\",\"B\"],\"gold\":0}", "so B", " won.", 4, 2, 0},
    {"mathqa",
     "{\"Problem\":\"a shop sold\",\"options\":\"a ) 38 , b ) 27.675 , c ) 1,200 , d ) data inadequate , e ) none of "
     "these\","
     "\"correct\":\"c\"}",
     "Question: a shop sold\nAnswer:", " 27.675", 6, 5, 2},
    {"mathqa", "{\"question\":\"sum\",\"choices\":[\"1\",\"22\"],\"gold\":1}", "Question: sum\nAnswer:", " 22", 2, 2,
     1},
};

static void prompts_are_the_harnesss(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++) {
        const struct want *w = &wants[i];
        nmlp_task_rows rows;
        nmlp_questions q;
        nmlp_err err;
        nmlp_assert_ok(nmlp_task_rows_init(&rows, w->row, strlen(w->row), "row", &err), &err);
        nmlp_assert_ok(nmlp_questions_read(&q, nmlp_task_find(w->task), &rows, &(nmlp_questions_options){0}, &err),
                       &err);
        assert_int_equal(q.n, 1);
        assert_int_equal(q.items[0].n_choices, w->n_choices);
        assert_int_equal(q.items[0].gold, w->gold);
        assert_string_equal(q.items[0].choices[1].context, w->context);
        assert_string_equal(q.items[0].choices[1].continuation, w->continuation);
        assert_int_equal(q.items[0].choices[1].norm_bytes, w->norm_bytes);
        nmlp_questions_free(&q);
        nmlp_task_rows_fini(&rows);
    }
}

static void contexts_without_the_choice_are_shared(void **state) {
    nmlp_task_rows rows;
    nmlp_questions q;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(nmlp_task_rows_init(&rows, wants[0].row, strlen(wants[0].row), "row", &err), &err);
    nmlp_assert_ok(nmlp_questions_read(&q, nmlp_task_find("arc_easy"), &rows, &(nmlp_questions_options){0}, &err),
                   &err);
    assert_ptr_equal(q.items[0].choices[0].context, q.items[0].choices[1].context);
    nmlp_questions_free(&q);
    nmlp_task_rows_fini(&rows);
}

static void a_row_fails(const char *task, const char *row, const char *reason) {
    nmlp_task_rows rows;
    nmlp_questions q;
    nmlp_err err;
    nmlp_assert_ok(nmlp_task_rows_init(&rows, row, strlen(row), "row", &err), &err);
    nmlp_status st = nmlp_questions_read(&q, nmlp_task_find(task), &rows, &(nmlp_questions_options){0}, &err);
    nmlp_assert_fails(st, &err, st == NMLP_OK ? NMLP_E_FORMAT : st, "row: line 1: ", reason, NULL);
    nmlp_task_rows_fini(&rows);
}

static void rows_that_fit_a_layout_but_not_the_task_are_refused(void **state) {
    (void)state;
    a_row_fails("winogrande", "{\"question\":\"no gap\",\"choices\":[\"A\",\"B\"],\"gold\":0}", "\"_\"");
    a_row_fails("winogrande", "{\"question\":\"gap at the end _\",\"choices\":[\"A\",\"B\"],\"gold\":0}",
                "nothing to score");
    a_row_fails("winogrande", "{\"sentence\":\"a _ b\",\"option1\":\"x\",\"option2\":\"y\",\"answer\":\"3\"}",
                "\"answer\" is 3");
    a_row_fails("arc_easy",
                "{\"question\":{\"stem\":\"q\",\"choices\":[{\"text\":\"x\",\"label\":\"A\"},{\"text\":\"y\",\"label\":"
                "\"B\"}]},"
                "\"answerKey\":\"C\"}",
                "\"answerKey\" is \"C\"");
    a_row_fails("mathqa", "{\"Problem\":\"p\",\"options\":\"a ) 1 , b ) 2 , c ) 3\",\"correct\":\"d\"}", "number 4");
    a_row_fails("mathqa", "{\"Problem\":\"p\",\"options\":\"nothing\",\"correct\":\"a\"}", "0 choices");
}

static void piqa_answers_come_from_the_second_file(void **state) {
    char dir[256], data[300], labels[300];
    const char rows[] =
        "{\"goal\":\"g\",\"sol1\":\"a\",\"sol2\":\"b\"}\n{\"goal\":\"h\",\"sol1\":\"c\",\"sol2\":\"d\"}\n";
    nmlp_questions q;
    nmlp_err err;
    nmlp_questions_options none = {0};
    const nmlp_task *piqa = nmlp_task_find("piqa");
    (void)state;
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(data, sizeof data, "%s/valid.jsonl", dir);
    snprintf(labels, sizeof labels, "%s/valid-labels.lst", dir);
    nmlp_test_write_file(data, rows, strlen(rows));
    nmlp_assert_fails(nmlp_questions_load(&q, piqa, data, &none, &err), &err, NMLP_E_MISSING, "valid-labels.lst", NULL);
    nmlp_test_write_file(labels, "1\n0\n", 4);
    nmlp_assert_ok(nmlp_questions_load(&q, piqa, data, &none, &err), &err);
    assert_int_equal(q.items[0].gold, 1);
    assert_int_equal(q.items[1].gold, 0);
    nmlp_questions_free(&q);
    nmlp_test_write_file(labels, "1\n", 2);
    nmlp_assert_fails(nmlp_questions_load(&q, piqa, data, &none, &err), &err, NMLP_E_FORMAT, "1 lines", "2 rows", NULL);
    nmlp_test_write_file(labels, "1\n2\n", 4);
    nmlp_assert_fails(nmlp_questions_load(&q, piqa, data, &none, &err), &err, NMLP_E_FORMAT, "labels.lst: line 2",
                      "0 to 1", NULL);
    nmlp_test_rmdir(dir);
}

static void task_files_say_the_same_as_the_table(void **state) {
    const char json[] =
        "{\"name\":\"w\",\"context\":\"{question|before:_}{choice}\",\"continuation\":\" {question|after:_|strip}\","
        "\"length\":\"{question|after:_|strip}\",\"layouts\":[{\"question\":\"{sentence}\",\"choices\":[\"{option1}\","
        "\"{option2}\"],\"gold\":\"answer\",\"gold_is\":\"index1\"}]}";
    const char *row = wants[8].row;
    nmlp_arena arena;
    nmlp_task task;
    nmlp_task_rows rows;
    nmlp_questions q;
    nmlp_err err;
    (void)state;
    nmlp_arena_init(&arena);
    nmlp_assert_ok(nmlp_task_parse(&task, &arena, json, strlen(json), "w.json", &err), &err);
    nmlp_assert_ok(nmlp_task_rows_init(&rows, row, strlen(row), "row", &err), &err);
    nmlp_assert_ok(nmlp_questions_read(&q, &task, &rows, &(nmlp_questions_options){0}, &err), &err);
    assert_string_equal(q.items[0].choices[1].context, wants[8].context);
    assert_string_equal(q.items[0].choices[1].continuation, wants[8].continuation);
    assert_int_equal(q.items[0].gold, 1);
    nmlp_questions_free(&q);
    nmlp_task_rows_fini(&rows);
    nmlp_arena_fini(&arena);
}

static void bad_task(const char *json, const char *reason) {
    nmlp_arena arena;
    nmlp_task task;
    nmlp_err err;
    nmlp_arena_init(&arena);
    nmlp_status st = nmlp_task_parse(&task, &arena, json, strlen(json), "t.json", &err);
    nmlp_assert_fails(st, &err, st == NMLP_OK ? NMLP_E_FORMAT : st, reason, NULL);
    nmlp_arena_fini(&arena);
}

static void bad_task_files_are_refused(void **state) {
    (void)state;
    bad_task("[]", "object");
    bad_task("{\"name\":\"\",\"context\":\"\",\"continuation\":\"\"}", "must not be empty");
    bad_task("{\"name\":\"x\"}", "\"context\" is missing");
    bad_task("{\"name\":\"x\",\"context\":\"{q\",\"continuation\":\"\"}", "not closed");
    bad_task("{\"name\":\"x\",\"context\":\"\",\"continuation\":\"\",\"shots\":5}", "unknown key \"shots\"");
    bad_task("{\"name\":\"x\",\"context\":\"\",\"continuation\":\"\",\"layouts\":{}}", "must be a list");
    bad_task("{\"name\":\"x\",\"context\":\"\",\"continuation\":\"\",\"layouts\":[{\"question\":\"{a}\",\"choices\":"
             "\"b[]\"}]}",
             "\"gold\" is missing");
    bad_task(
        "{\"name\":\"x\",\"context\":\"\",\"continuation\":\"\",\"layouts\":[{\"question\":\"{a}\",\"choices\":\"b[]\","
        "\"gold\":\"g\",\"gold_is\":\"best\"}]}",
        "\"gold_is\" is \"best\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_the_harnesss),
        cmocka_unit_test(contexts_without_the_choice_are_shared),
        cmocka_unit_test(rows_that_fit_a_layout_but_not_the_task_are_refused),
        cmocka_unit_test(piqa_answers_come_from_the_second_file),
        cmocka_unit_test(task_files_say_the_same_as_the_table),
        cmocka_unit_test(bad_task_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
