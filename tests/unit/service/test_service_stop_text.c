/* Stop strings in text that comes byte by byte: compared with looking at the whole text at once. */
#include "base/str.h"
#include "lib/testing.h"
#include "service/stop_text.h"

/* Feeds `text` a byte at a time; what was released goes to `out`. Returns whether a stop string ended it. */
static bool feed(nmlp_str *out, const nmlp_stop_text *stop, const char *text) {
    size_t released = 0;
    bool found = false;
    nmlp_str_clear(out);
    for (size_t len = 1; len <= strlen(text) && !found; len++) {
        size_t upto = nmlp_stop_text_release(stop, text, len, released, &found);
        assert_true(upto >= released && upto <= len);
        nmlp_str_append(out, text + released, upto - released);
        released = upto;
    }
    if (!found) nmlp_str_append(out, text + released, strlen(text) - released);
    return found;
}

static void text_ends_at_the_first_stop_string(void **state) {
    (void)state;
    static const char *const strings[] = {"aab", "ab\n", "zz"};
    static const struct {
        const char *text, *wanted;
        bool found;
    } cases[] = {
        {"hello", "hello", false}, {"xaaab", "xa", true},     {"aa", "aa", false},  {"caab", "c", true},
        {"xab\ny", "x", true},     {"xab y", "xab y", false}, {"z zz", "z ", true}, {"zaazaab", "zaaz", true},
    };
    nmlp_stop_text stop = {strings, 3};
    nmlp_str out;
    nmlp_str_init(&out);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(feed(&out, &stop, cases[i].text), cases[i].found);
        assert_string_equal(nmlp_str_text(&out), cases[i].wanted);
    }
    nmlp_str_fini(&out);
}

/* Every text of 8 letters out of two: as strstr finds it. */
static void agrees_with_a_search_of_the_whole_text(void **state) {
    (void)state;
    static const char *const strings[] = {"abab"};
    nmlp_stop_text stop = {strings, 1};
    nmlp_str out;
    nmlp_str_init(&out);
    for (unsigned bits = 0; bits < 1u << 8; bits++) {
        char text[9] = {0};
        for (int i = 0; i < 8; i++) text[i] = bits >> i & 1 ? 'a' : 'b';
        const char *at = strstr(text, strings[0]);
        assert_int_equal(feed(&out, &stop, text), at != NULL);
        assert_int_equal(out.len, at ? (size_t)(at - text) : 8);
    }
    nmlp_str_fini(&out);
}

static void without_strings_all_text_is_released(void **state) {
    (void)state;
    bool found;
    nmlp_stop_text none = {NULL, 0};
    assert_int_equal(nmlp_stop_text_release(&none, "abc", 3, 1, &found), 3);
    assert_false(found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_ends_at_the_first_stop_string),
        cmocka_unit_test(agrees_with_a_search_of_the_whole_text),
        cmocka_unit_test(without_strings_all_text_is_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
