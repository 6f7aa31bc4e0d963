/* JSON in and out. */
#include <malloc.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/json_write.h"
#include "lib/testing.h"

static nmlp_status parse(nmlp_json_doc *doc, const char *text, nmlp_err *err) {
    return nmlp_json_parse(doc, text, strlen(text), "x.json", err);
}

static void values_are_read(void **state) {
    nmlp_json_doc doc;
    nmlp_err err;
    int64_t i = 0;
    (void)state;
    nmlp_assert_ok(parse(&doc, " {\"a\":[1,2.5,\"t\\u00e9\"],\"b\":null,\"c\":true} \n", &err), &err);
    const nmlp_json *a = nmlp_json_first(nmlp_json_get(doc.root, "a"));
    assert_true(nmlp_json_int_in(a, 0, 5, &i) && i == 1);
    assert_false(nmlp_json_int_in(nmlp_json_next(a), 0, 5, &i));
    assert_string_equal(nmlp_json_string(nmlp_json_next(nmlp_json_next(a))), "t\xc3\xa9");
    assert_true(nmlp_json_is_null(nmlp_json_get(doc.root, "b")));
    assert_true(nmlp_json_is_null(nmlp_json_get(doc.root, "absent")));
    assert_true(nmlp_json_bool(nmlp_json_get(doc.root, "c")));
    assert_null(nmlp_json_get(doc.root, "A"));
    assert_int_equal(nmlp_json_count(doc.root), 3);
    nmlp_json_free(&doc);
}

static void broken_texts_name_line_and_column(void **state) {
    static const char *const broken[] = {"",        "{",      "{\"a\":1",  "[1,2",  "nul", "{\"a\":1}x",
                                         "{'a':1}", "\"open", "{\"a\" 1}", "[1 2]", "{,}", "[\"\\u12\"]"};
    nmlp_json_doc doc;
    nmlp_err err;
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        nmlp_assert_fails(parse(&doc, broken[i], &err), &err, NMLP_E_FORMAT, "x.json", "JSON", NULL);
    nmlp_assert_fails(parse(&doc, "{\n \"a\": oops}", &err), &err, NMLP_E_FORMAT, "line 2", NULL);
}

static void deep_nesting_is_refused_not_followed(void **state) {
    enum { DEPTH = 200000 };
    static char text[DEPTH + 1];
    nmlp_json_doc doc;
    nmlp_err err;
    (void)state;
    memset(text, '[', DEPTH);
    nmlp_assert_fails(parse(&doc, text, &err), &err, NMLP_E_FORMAT, "x.json", NULL);
}

static void huge_numbers_are_no_integers(void **state) {
    nmlp_json_doc doc;
    nmlp_err err;
    int64_t i;
    double d;
    (void)state;
    nmlp_assert_ok(parse(&doc, "{\"big\":1e400,\"long\":123456789012345678901234567890,\"half\":0.5}", &err), &err);
    nmlp_assert_fails(nmlp_json_need_int(&doc, doc.root, "big", 0, INT64_MAX, &i, &err), &err, NMLP_E_FORMAT, "big",
                      NULL);
    nmlp_assert_fails(nmlp_json_need_int(&doc, doc.root, "long", 0, INT64_MAX, &i, &err), &err, NMLP_E_FORMAT, "long",
                      NULL);
    nmlp_assert_fails(nmlp_json_need_int(&doc, doc.root, "half", 0, 9, &i, &err), &err, NMLP_E_FORMAT, "half", NULL);
    nmlp_assert_fails(nmlp_json_need_int(&doc, doc.root, "gone", 0, 9, &i, &err), &err, NMLP_E_MISSING, "gone", NULL);
    nmlp_assert_fails(nmlp_json_need_number(&doc, doc.root, "big", &d, &err), &err, NMLP_E_FORMAT, "big", NULL);
    nmlp_json_free(&doc);
}

static void written_text_reads_back(void **state) {
    nmlp_str out;
    nmlp_json_writer w;
    nmlp_json_doc doc;
    nmlp_err err;
    (void)state;
    nmlp_str_init(&out);
    nmlp_json_writer_init(&w, &out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "s", "quote \" slash \\ tab \t bell \a end");
    nmlp_json_put_number(&w, "n", 0.1);
    nmlp_json_put_number(&w, "nan", __builtin_nan(""));
    nmlp_json_begin_array(&w, "a");
    nmlp_json_put_int(&w, NULL, -7);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_end_object(&w);
    nmlp_json_put_bool(&w, NULL, false);
    nmlp_json_end_array(&w);
    nmlp_json_end_object(&w);
    nmlp_assert_ok(nmlp_json_parse(&doc, out.data, out.len, "out", &err), &err);
    assert_string_equal(nmlp_json_string(nmlp_json_get(doc.root, "s")), "quote \" slash \\ tab \t bell \a end");
    assert_true(nmlp_json_number(nmlp_json_get(doc.root, "n")) == 0.1);
    assert_true(nmlp_json_is_null(nmlp_json_get(doc.root, "nan")));
    assert_int_equal(nmlp_json_count(nmlp_json_get(doc.root, "a")), 3);
    nmlp_json_free(&doc);
    nmlp_str_fini(&out);
}

/* Names of files may be any bytes; JSON is UTF-8. The lengths follow the table of well-formed sequences in Unicode 3.9.
 */
static void bytes_that_are_no_utf8_are_replaced(void **state) {
    static const struct {
        const char *text, *json;
    } rows[] = {{"caf\xc3\xa9 \xf0\x9f\x98\x80", "\"caf\xc3\xa9 \xf0\x9f\x98\x80\""},
                {"a\xff"
                 "b",
                 "\"a\\ufffdb\""},
                {"\xc3", "\"\\ufffd\""},
                {"\xc0\xaf", "\"\\ufffd\\ufffd\""},
                {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""},
                {"\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},
                {"\xe0\x9f\xbf.", "\"\\ufffd\\ufffd\\ufffd.\""}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nmlp_json_writer w;
        nmlp_str out;
        nmlp_str_init(&out);
        nmlp_json_writer_init(&w, &out);
        nmlp_json_put_string(&w, NULL, rows[i].text);
        assert_string_equal(nmlp_str_text(&out), rows[i].json);
        nmlp_str_fini(&out);
    }
}

/* 12 MB of "[0,0,…]" would be half a gigabyte of values. */
static void more_values_than_any_file_has_are_refused(void **state) {
    enum { N = 6100000 };
    nmlp_json_doc doc;
    nmlp_err err;
    char *text = malloc(2 * N + 2);
    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < N; i++) memcpy(text + 1 + 2 * i, i + 1 < N ? "0," : "0]", 2);
    text[0] = '[';
    nmlp_assert_fails(nmlp_json_parse(&doc, text, 2 * N + 1, "big.json", &err), &err, NMLP_E_LIMIT, "big.json",
                      "values", NULL);
    memset(text, ',', 2 * N + 1); /* one string, however long, is one value */
    text[0] = text[2 * N] = '"';
    nmlp_assert_ok(nmlp_json_parse(&doc, text, 2 * N + 1, "big.json", &err), &err);
    nmlp_json_free(&doc);
    free(text);
}

/* Memory of a text once parsed, against what the C library says it gave for it. */
static void what_a_text_will_take_is_known_before(void **state) {
    static const struct {
        const char *text;
        size_t n_values, n_strings;
    } cases[] = {
        {"7", 1, 0},
        {"[1,2,3]", 4, 0},
        {"{\"a\":1,\"b\":[true,null]}", 5, 2},
        {"{\"a,[{\":\"b\\\",\",\"c\":\"\"}", 3, 4},
    };
    nmlp_str text;
    nmlp_json_doc doc;
    nmlp_err err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nmlp_json_size size = nmlp_json_measure(cases[i].text, strlen(cases[i].text));
        assert_int_equal(size.n_values, cases[i].n_values);
        assert_int_equal(size.n_strings, cases[i].n_strings);
    }
    nmlp_str_init(&text);
    nmlp_str_puts(&text, "{\"0\":0");
    for (int i = 1; i < 20000; i++) nmlp_str_printf(&text, ",\"entry number %d\":[%d,\"%*d\"]", i, i, i % 60, i);
    nmlp_str_putc(&text, '}');
#ifndef NMLP_SANITIZED /* its allocator is another */
    size_t need = nmlp_json_measure(text.data, text.len).bytes, before = mallinfo2().uordblks;
    nmlp_assert_ok(nmlp_json_parse(&doc, text.data, text.len, "text", &err), &err);
    size_t taken = mallinfo2().uordblks - before;
    assert_in_range(need, taken - taken / 50, taken + taken / 50);
#else
    nmlp_assert_ok(nmlp_json_parse(&doc, text.data, text.len, "text", &err), &err);
#endif
    nmlp_json_free(&doc);
    nmlp_str_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_that_are_no_utf8_are_replaced),
        cmocka_unit_test(more_values_than_any_file_has_are_refused),
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(broken_texts_name_line_and_column),
        cmocka_unit_test(deep_nesting_is_refused_not_followed),
        cmocka_unit_test(huge_numbers_are_no_integers),
        cmocka_unit_test(written_text_reads_back),
        cmocka_unit_test(what_a_text_will_take_is_known_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
