/* Machine files: the built-in ones are complete and sourced; bad ones are refused with line and key. */
#include <stdlib.h>

#include "base/file.h"
#include "base/str.h"
#include "lib/testing.h"
#include "trainium/neuron/machine.h"

static void builtin_machines_load_and_name_their_sources(void **state) {
    (void)state;
    int n = 0;
    for (const char *name; (name = nmlp_machine_builtin_name((size_t)n)) != NULL; n++) {
        nmlp_machine m;
        nmlp_err err = {0};
        nmlp_assert_ok(nmlp_machine_open(&m, name, &err), &err);
        assert_string_equal(m.name, name);
        for (int key = 0; key < NMLP_MACHINE_N_KEYS; key++) assert_true(strlen(m.origin[key].source) > 0);
    }
    assert_int_equal(n, 3);
}

static void documented_numbers_are_those_of_the_guides(void **state) {
    (void)state;
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_machine_open(&m, "trn1", &err), &err);
    assert_true(m.sbuf_partition_bytes * m.partitions == 24.0 * 1024 * 1024);
    assert_true(m.psum_banks * m.psum_bank_bytes * m.partitions == 2.0 * 1024 * 1024);
    double peak = nmlp_machine_peak_flops_per_ns(&m, false);
    assert_true(peak > 91700 && peak < 91800); /* 91.75 TFLOP/s */
    nmlp_assert_ok(nmlp_machine_open(&m, "trn2", &err), &err);
    peak = nmlp_machine_peak_flops_per_ns(&m, true);
    assert_true(peak > 19600 && peak < 19700); /* 78.6 / 4 */
    assert_true(m.sbuf_partition_bytes == 224 * 1024);
}

/* The text of trn1 with one line replaced. */
static void edited(nmlp_str *out, const char *key, const char *line) {
    const char *text = nmlp_machine_builtin_text("trn1");
    char needle[64];
    snprintf(needle, sizeof needle, "\n%s ", key);
    const char *at = strstr(text, needle);
    assert_non_null(at);
    const char *end = strchr(at + 1, '\n');
    nmlp_str_init(out);
    nmlp_str_append(out, text, (size_t)(at + 1 - text));
    nmlp_str_puts(out, line);
    nmlp_str_puts(out, end);
}

static void refused(const char *key, const char *line, nmlp_status code, const char *part1, const char *part2) {
    nmlp_str text;
    nmlp_machine m;
    nmlp_err err = {0};
    edited(&text, key, line);
    nmlp_assert_fails(nmlp_machine_parse(&m, "my.machine", nmlp_str_text(&text), text.len, &err), &err, code,
                      "my.machine", part1, part2, NULL);
    nmlp_str_fini(&text);
}

static void bad_lines_are_refused_with_line_and_key(void **state) {
    (void)state;
    refused("psum_banks", "psum_banks eight [documented] guide", NMLP_E_FORMAT, ":10:", "psum_banks");
    refused("psum_banks", "psum_banks -8 [documented] guide", NMLP_E_FORMAT, ":10:", "psum_banks");
    refused("psum_banks", "psum_banks nan [documented] guide", NMLP_E_FORMAT, ":10:", "not a number");
    refused("psum_banks", "psum_bank 8 [documented] guide", NMLP_E_FORMAT, ":10:", "unknown key");
    refused("psum_banks", "psum_banks 8 [guessed] guide", NMLP_E_FORMAT, ":10:", "[guessed]");
    refused("psum_banks", "psum_banks 8 [documented]", NMLP_E_FORMAT, ":10:", "names no source");
    refused("psum_banks", "partitions 128 [documented] guide", NMLP_E_FORMAT, ":10:", "comes twice");
    refused("psum_banks", "# gone", NMLP_E_MISSING, "psum_banks", "missing");
    refused("sbuf_usable_bytes", "sbuf_usable_bytes 200000 [documented] guide", NMLP_E_FORMAT, "sbuf_usable_bytes",
            "more than");
}

static void more_than_four_fitted_numbers_are_refused(void **state) {
    (void)state;
    nmlp_str text;
    nmlp_machine m;
    nmlp_err err = {0};
    edited(&text, "psum_banks", "psum_banks 8 [fitted] one");
    const char *keys[] = {"semaphore_ns", "launch_us", "dma_start_ns", "dma_done_ns"};
    for (int i = 0; i < 4; i++) { /* turn the tag of four more lines into [fitted] */
        char *at = strstr(text.data, keys[i]);
        char *tag = strchr(at, '['), *end = strchr(tag, ']');
        memset(tag, ' ', (size_t)(end - tag) + 1);
        memcpy(tag, "[fitted]", 8);
    }
    nmlp_assert_fails(nmlp_machine_parse(&m, "f", text.data, text.len, &err), &err, NMLP_E_FORMAT, "fitted",
                      "at most 4", NULL);
    nmlp_str_fini(&text);
}

static void user_file_is_a_target(void **state) {
    (void)state;
    char dir[256], path[300];
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_str text;
    edited(&text, "name", "name mine");
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/mine.machine", dir);
    nmlp_test_write_file(path, text.data, text.len);
    nmlp_assert_ok(nmlp_machine_open(&m, path, &err), &err);
    assert_string_equal(m.name, "mine");
    nmlp_assert_fails(nmlp_machine_open(&m, "trn9", &err), &err, NMLP_E_ARG, "trn9", NULL);
    nmlp_str_fini(&text);
    nmlp_test_rmdir(dir);
}

static void documentation_lists_every_number(void **state) {
    (void)state;
    nmlp_str doc;
    nmlp_err err = {0};
    nmlp_machine m[3];
    nmlp_str_init(&doc);
    nmlp_assert_ok(nmlp_file_read(&doc, NMLP_TEST_ROOT "/docs/simulator.md", 1 << 20, &err), &err);
    for (size_t i = 0; i < 3; i++) nmlp_assert_ok(nmlp_machine_open(&m[i], nmlp_machine_builtin_name(i), &err), &err);
    for (int key = 0; key < NMLP_MACHINE_N_KEYS; key++) {
        char line[160];
        nmlp_machine_key k = (nmlp_machine_key)key;
        snprintf(line, sizeof line, "| `%s` | %g | %g | %g |", nmlp_machine_key_name(k), nmlp_machine_value(&m[0], k),
                 nmlp_machine_value(&m[1], k), nmlp_machine_value(&m[2], k));
        if (!strstr(nmlp_str_text(&doc), line)) print_message("docs/simulator.md lacks: %s\n", line);
        assert_non_null(strstr(nmlp_str_text(&doc), line));
    }
    nmlp_str_fini(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builtin_machines_load_and_name_their_sources),
        cmocka_unit_test(documented_numbers_are_those_of_the_guides),
        cmocka_unit_test(bad_lines_are_refused_with_line_and_key),
        cmocka_unit_test(more_than_four_fitted_numbers_are_refused),
        cmocka_unit_test(user_file_is_a_target),
        cmocka_unit_test(documentation_lists_every_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
