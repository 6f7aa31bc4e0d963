/* Rows that are wrong say where and why; none is skipped. */
#include "base/mem.h"
#include "eval/questions.h"
#include "lib/testing.h"

#define GOOD "{\"id\":1,\"question\":\"q\",\"choices\":[\"a\",\"b\"],\"gold\":0}\n"

static nmlp_status read_text(const char *text, size_t len, const char *origin, const char *task, int64_t limit,
                             size_t *n, nmlp_err *err) {
    nmlp_task_rows rows;
    nmlp_questions questions;
    nmlp_status st = nmlp_task_rows_init(&rows, text, len, origin, err);
    if (st == NMLP_OK) {
        st = nmlp_questions_read(&questions, nmlp_task_find(task), &rows, &(nmlp_questions_options){.limit = limit},
                                 err);
        if (st == NMLP_OK) {
            if (n) *n = questions.n;
            nmlp_questions_free(&questions);
        }
    }
    nmlp_task_rows_fini(&rows);
    return st;
}

/* The second row is the bad one, so that the line number is known to count. */
static void refused(const char *row, nmlp_status code, const char *reason) {
    nmlp_err err;
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_str_puts(&text, GOOD);
    nmlp_str_puts(&text, row);
    nmlp_str_puts(&text, "\n" GOOD);
    nmlp_assert_fails(read_text(text.data, text.len, "set.jsonl", "arc_easy", 0, NULL, &err), &err, code,
                      "set.jsonl: line 2: ", reason, NULL);
    nmlp_str_fini(&text);
}

static void malformed_rows_give_line_and_reason(void **state) {
    (void)state;
    refused("{\"question\":\"q\",\"choices\":[\"a\",\"b\"]}", NMLP_E_MISSING, "\"gold\" is missing");
    refused("{\"question\":\"q\",\"gold\":0}", NMLP_E_MISSING, "\"choices\" is missing");
    refused("{\"choices\":[\"a\",\"b\"],\"gold\":0}", NMLP_E_MISSING, "\"question\" is missing");
    refused("{\"question\":\"q\",\"choices\":[\"a\",\"b\"],\"gold\":2}", NMLP_E_FORMAT,
            "\"gold\" is 2, but there are 2 choices");
    refused("{\"question\":\"q\",\"choices\":[\"a\",\"b\"],\"gold\":-1}", NMLP_E_FORMAT, "\"gold\" is -1");
    refused("{\"question\":\"q\",\"choices\":[\"a\",\"b\"],\"gold\":0.5}", NMLP_E_FORMAT, "whole number");
    refused("{\"question\":\"q\",\"choices\":[\"a\",\"b\"],\"gold\":\"1x\"}", NMLP_E_FORMAT, "whole number");
    refused("{\"question\":\"q\",\"choices\":[\"a\",\"b\"],\"gold\":null}", NMLP_E_MISSING, "\"gold\"");
    refused("{\"question\":\"q\",\"choices\":[\"a\",\"\"],\"gold\":0}", NMLP_E_FORMAT, "choice 1 is empty");
    refused("{\"question\":\"q\",\"choices\":[\" \\u00a0\",\"b\"],\"gold\":0}", NMLP_E_FORMAT, "choice 0 is empty");
    refused("{\"question\":\"q\",\"choices\":[\"a\"],\"gold\":0}", NMLP_E_FORMAT, "1 choices");
    refused("{\"question\":\"q\",\"choices\":[],\"gold\":0}", NMLP_E_FORMAT, "0 choices");
    refused("{\"question\":\"q\",\"choices\":[\"a\",1],\"gold\":0}", NMLP_E_FORMAT, "choice 1");
    refused("{\"question\":\"q\",\"choices\":\"ab\",\"gold\":0}", NMLP_E_FORMAT, "must be a list");
    refused("{\"question\":7,\"choices\":[\"a\",\"b\"],\"gold\":0}", NMLP_E_FORMAT, "\"question\" must be a string");
    refused("{\"question\":\" \",\"choices\":[\"a\",\"b\"],\"gold\":0}", NMLP_E_FORMAT, "question is empty");
    refused("{\"question\":\"q\xff\",\"choices\":[\"a\",\"b\"],\"gold\":0}", NMLP_E_FORMAT, "not UTF-8 at byte 15");
    refused("{\"question\":\"q\\u0000r\",\"choices\":[\"a\",\"b\"],\"gold\":0}", NMLP_E_FORMAT, "u0000");
    refused("{\"question\":", NMLP_E_FORMAT, "not valid JSON, column");
    refused("[1]", NMLP_E_FORMAT, "not a JSON object");
    refused("", NMLP_E_FORMAT, "is empty");
}

static void escaped_backslash_before_u0000_is_text(void **state) {
    const char text[] = "{\"question\":\"\\\\u0000\",\"choices\":[\"a\",\"b\"],\"gold\":0}\n";
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(read_text(text, strlen(text), "x", "arc_easy", 0, NULL, &err), &err);
}

static void a_line_of_10_mb_is_refused(void **state) {
    enum { BYTES = 10 << 20 };
    nmlp_err err;
    nmlp_str text;
    (void)state;
    char *filler = nmlp_mem_new(BYTES + 1, 1, NULL);
    memset(filler, 'x', BYTES);
    nmlp_str_init(&text);
    nmlp_str_puts(&text, GOOD "{\"question\":\"");
    nmlp_str_append(&text, filler, BYTES);
    nmlp_str_puts(&text, "\",\"choices\":[\"a\",\"b\"],\"gold\":0}\n");
    nmlp_assert_fails(read_text(text.data, text.len, "set.jsonl", "arc_easy", 0, NULL, &err), &err, NMLP_E_LIMIT,
                      "set.jsonl: line 2: ", "10485", NULL);
    nmlp_str_fini(&text);
    nmlp_mem_free(filler);
}

static void limit_reads_only_the_first_rows(void **state) {
    const char text[] = GOOD GOOD "broken\n";
    nmlp_err err;
    size_t n = 0;
    (void)state;
    nmlp_assert_ok(read_text(text, strlen(text), "x", "arc_easy", 2, &n, &err), &err);
    assert_int_equal(n, 2);
    nmlp_assert_fails(read_text(text, strlen(text), "x", "arc_easy", 0, NULL, &err), &err, NMLP_E_FORMAT, "line 3",
                      NULL);
}

static void files_of_other_kinds_are_refused_with_a_hint(void **state) {
    nmlp_err err;
    (void)state;
    nmlp_assert_fails(read_text("PAR1xx", 6, "data", "piqa", 0, NULL, &err), &err, NMLP_E_UNSUPPORTED, "Parquet", NULL);
    assert_non_null(strstr(err.hint, "JSON Lines"));
    nmlp_assert_fails(read_text("x", 1, "a.parquet", "piqa", 0, NULL, &err), &err, NMLP_E_UNSUPPORTED, "Parquet", NULL);
    nmlp_assert_fails(read_text("\x1f\x8b..", 4, "data", "piqa", 0, NULL, &err), &err, NMLP_E_UNSUPPORTED, "compressed",
                      NULL);
    nmlp_assert_fails(read_text("", 0, "data", "piqa", 0, NULL, &err), &err, NMLP_E_FORMAT, "data: is empty", NULL);
    nmlp_assert_fails(read_text("[]", 2, "data", "piqa", 0, NULL, &err), &err, NMLP_E_FORMAT, "no rows", NULL);
    nmlp_assert_fails(read_text("{\"text\":1}\n", 11, "data", "piqa", 0, NULL, &err), &err, NMLP_E_FORMAT, "line 1",
                      "none of the keys", NULL);
    nmlp_assert_fails(read_text("[{\"question\":1", 14, "d", "piqa", 0, NULL, &err), &err, NMLP_E_FORMAT, "d: ", "JSON",
                      NULL);
}

static void rows_of_an_array_are_counted(void **state) {
    const char text[] = " [ {\"question\":\"q\",\"choices\":[\"a\",\"b\"],\"gold\":0},\n\n {\"question\":\"q\"} ]";
    nmlp_err err;
    (void)state;
    nmlp_assert_fails(read_text(text, strlen(text), "d.json", "arc_easy", 0, NULL, &err), &err, NMLP_E_MISSING,
                      "d.json: row 2: ", "choices", NULL);
}

static void csv_fields_may_be_quoted_and_span_lines(void **state) {
    const char text[] = "questionID,AnswerKey,question\r\n"
                        "1,B,\"Which, \"\"now\"\"\nthen? (A) one (B) two, three (C) four\"\r\n"
                        "2,A,Plain? (A) x (B) y\n";
    const char uneven[] = "questionID,AnswerKey,question\n1,B,\"a\nb? (A) one (B) two\"\n1,B\n";
    nmlp_task_rows rows;
    nmlp_questions q;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(nmlp_task_rows_init(&rows, text, strlen(text), "arc.csv", &err), &err);
    nmlp_assert_ok(nmlp_questions_read(&q, nmlp_task_find("arc_easy"), &rows, &(nmlp_questions_options){0}, &err),
                   &err);
    nmlp_task_rows_fini(&rows);
    assert_int_equal(q.n, 2);
    assert_string_equal(q.items[0].choices[1].context, "Question: Which, \"now\"\nthen?\nAnswer:");
    assert_string_equal(q.items[0].choices[1].continuation, " two, three");
    assert_int_equal(q.items[0].gold, 1);
    assert_int_equal(q.items[0].n_choices, 3);
    assert_string_equal(q.items[1].choices[1].continuation, " y");
    nmlp_questions_free(&q);
    nmlp_assert_fails(read_text(uneven, strlen(uneven), "arc.csv", "arc_easy", 0, NULL, &err), &err, NMLP_E_FORMAT,
                      "arc.csv: line 4: ", "has 2 fields, the header names 3", NULL);
    nmlp_assert_fails(read_text("a,b\n\"x\n", 7, "a.csv", "arc_easy", 0, NULL, &err), &err, NMLP_E_FORMAT, "line 2",
                      "not closed", NULL);
    nmlp_assert_fails(read_text("a,b\n\"x\"y,1\n", 11, "a.csv", "arc_easy", 0, NULL, &err), &err, NMLP_E_FORMAT,
                      "line 2", "closing quote", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_rows_give_line_and_reason),
        cmocka_unit_test(escaped_backslash_before_u0000_is_text),
        cmocka_unit_test(a_line_of_10_mb_is_refused),
        cmocka_unit_test(limit_reads_only_the_first_rows),
        cmocka_unit_test(files_of_other_kinds_are_refused_with_a_hint),
        cmocka_unit_test(rows_of_an_array_are_counted),
        cmocka_unit_test(csv_fields_may_be_quoted_and_span_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
