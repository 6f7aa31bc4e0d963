#include "lib/testing.h"
#include "report/table.h"

static const nmlp_column columns[] = {{"name", false}, {"ms", false}, {"note", true}};

static void fill(nmlp_table *table) {
    nmlp_table_init(table, columns, 3);
    nmlp_table_text(table, "dense");
    nmlp_table_number(table, 12.345, 2);
    nmlp_table_text(table, "a, \"b\"");
    nmlp_table_text(table, "r 8");
    nmlp_table_none(table);
    nmlp_table_text(table, "");
    assert_int_equal(nmlp_table_status(table, NULL), NMLP_OK);
}

static void people_see_aligned_columns(void **state) {
    (void)state;
    nmlp_table table;
    nmlp_str text;
    fill(&table);
    nmlp_str_init(&text);
    nmlp_table_print(&table, &text);
    assert_string_equal(nmlp_str_text(&text), "name      ms  \ndense  12.35  \nr 8        -  \n");
    nmlp_str_fini(&text);
    nmlp_table_fini(&table);
}

static void csv_quotes_what_would_break_it(void **state) {
    (void)state;
    nmlp_table table;
    nmlp_str text;
    fill(&table);
    nmlp_str_init(&text);
    nmlp_table_csv(&table, &text);
    assert_string_equal(nmlp_str_text(&text), "name,ms,note\ndense,12.35,\"a, \"\"b\"\"\"\nr 8,,\n");
    nmlp_str_fini(&text);
    nmlp_table_fini(&table);
}

static void json_keeps_numbers_whole(void **state) {
    (void)state;
    nmlp_table table;
    nmlp_str text;
    nmlp_json_writer json;
    fill(&table);
    nmlp_str_init(&text);
    nmlp_json_writer_init(&json, &text);
    nmlp_json_begin_object(&json, NULL);
    nmlp_table_json(&table, "rows", &json);
    nmlp_json_end_object(&json);
    assert_string_equal(nmlp_str_text(&text), "{\"rows\":[{\"name\":\"dense\",\"ms\":12.345,\"note\":\"a, \\\"b\\\"\"},"
                                              "{\"name\":\"r 8\",\"ms\":null,\"note\":\"\"}]}");
    nmlp_str_fini(&text);
    nmlp_table_fini(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(people_see_aligned_columns),
        cmocka_unit_test(csv_quotes_what_would_break_it),
        cmocka_unit_test(json_keeps_numbers_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
