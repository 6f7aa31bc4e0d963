#include "lib/testing.h"

#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "report/csv.h"

static char path[64];

static nmlp_status read_text(nmlp_csv *csv, const char *text, nmlp_err *err) {
    snprintf(path, sizeof path, "/tmp/nmlp-csv-%ld", (long)getpid());
    assert_int_equal(nmlp_file_write_text(path, text, strlen(text), err), NMLP_OK);
    nmlp_status st = nmlp_csv_read(csv, path, err);
    unlink(path);
    return st;
}

static void cells_are_found_by_row_and_name(void **state) {
    (void)state;
    nmlp_csv csv;
    nmlp_err err = {0};
    int columns[2];
    double value = 0;
    assert_int_equal(read_text(&csv, "# made so\nname,ms\n\n\"a, \"\"b\"\"\",1.5\r\nplain,2", &err), NMLP_OK);
    assert_int_equal(csv.n_rows, 2);
    assert_string_equal(csv.note, "made so");
    assert_int_equal(nmlp_csv_need(&csv, (const char *const[]){"ms", "name"}, 2, columns, &err), NMLP_OK);
    assert_string_equal(nmlp_csv_text(&csv, 0, columns[1]), "a, \"b\"");
    assert_string_equal(nmlp_csv_text(&csv, 1, columns[1]), "plain");
    assert_int_equal(nmlp_csv_number(&csv, 0, columns[0], &value, &err), NMLP_OK);
    assert_true(value == 1.5);
    assert_int_equal(nmlp_csv_find(&csv, "none"), -1);
    nmlp_csv_fini(&csv);
}

static void refused(const char *text, const char *words) {
    nmlp_csv csv;
    nmlp_err err = {0};
    double value;
    nmlp_status st = read_text(&csv, text, &err);
    if (st == NMLP_OK) st = nmlp_csv_number(&csv, 0, 0, &value, &err);
    assert_int_equal(st, NMLP_E_FORMAT);
    if (!strstr(err.message, words)) fail_msg("\"%s\" lacks \"%s\"", err.message, words);
    nmlp_csv_fini(&csv);
}

static void errors_name_line_and_column(void **state) {
    (void)state;
    refused("", "holds no results");
    refused("a,b\n1\n", ":2: 1 fields; the first line has 2");
    refused("a,b\n\n1,2,3\n", ":3: 3 fields");
    refused("a,b\nx,2\n", ":2: a is \"x\"");
    refused("a,b\ninf,2\n", ":2: a is \"inf\"");
    refused("a,b\n\"open,2\n", ":2: 1 fields");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cells_are_found_by_row_and_name),
                                       cmocka_unit_test(errors_name_line_and_column)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
