/* Grammars against POSIX regular expressions of the C library, which share nothing with them, and against their own
 * definition where regular expressions end. */
#include <regex.h>

#include "base/rng.h"
#include "base/str.h"
#include "grammar/matcher.h"
#include "lib/testing.h"

static nmlp_matcher *open_text(nmlp_grammar **g, const char *text) {
    nmlp_matcher *m;
    nmlp_err err;
    nmlp_assert_ok(nmlp_grammar_parse(g, text, strlen(text), &err), &err);
    nmlp_assert_ok(nmlp_matcher_create(&m, *g, &err), &err);
    return m;
}

static bool matches(nmlp_matcher *m, const char *text) {
    int32_t state = nmlp_matcher_start(m);
    for (; *text && state >= 0; text++) state = nmlp_matcher_next(m, state, (unsigned char)*text);
    assert_int_not_equal(state, NMLP_MATCHER_FAILED);
    return state >= 0 && nmlp_matcher_accepts(m, state);
}

/* The same random expression in both notations. */
static void random_expression(nmlp_rng *rng, int depth, nmlp_str *gbnf, nmlp_str *ere) {
    static const char *const atoms[][2] = {{"\"a\"", "a"},   {"\"b\"", "b"}, {"[ab]", "[ab]"},
                                           {"[^a]", "[^a]"}, {".", "."},     {"\"ab\"", "(ab)"}};
    static const char *const repeats[] = {"", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}"};
    uint64_t kind = nmlp_rng_below(rng, depth > 0 ? 4 : 1);
    if (kind == 0) {
        const char *const *atom = atoms[nmlp_rng_below(rng, 6)];
        nmlp_str_puts(gbnf, atom[0]);
        nmlp_str_puts(ere, atom[1]);
    } else {
        nmlp_str_puts(gbnf, "(");
        nmlp_str_puts(ere, "(");
        for (int i = 0; i < 2; i++) {
            if (i == 1 && kind == 1) nmlp_str_puts(gbnf, " | ");
            if (i == 1 && kind == 1) nmlp_str_puts(ere, "|");
            random_expression(rng, depth - 1, gbnf, ere);
            nmlp_str_putc(gbnf, ' ');
        }
        nmlp_str_puts(gbnf, ")");
        nmlp_str_puts(ere, ")");
    }
    const char *repeat = repeats[nmlp_rng_below(rng, 8)];
    nmlp_str_puts(gbnf, repeat);
    nmlp_str_puts(ere, repeat);
}

static void random_expressions_match_what_regular_ones_do(void **state) {
    nmlp_rng rng;
    int n_matched = 0;
    (void)state;
    nmlp_rng_seed(&rng, 7);
    for (int round = 0; round < 150; round++) {
        nmlp_str gbnf, ere;
        nmlp_grammar *g;
        regex_t regex;
        nmlp_str_init(&gbnf);
        nmlp_str_init(&ere);
        nmlp_str_puts(&gbnf, "root ::= ");
        nmlp_str_puts(&ere, "^(");
        random_expression(&rng, 3, &gbnf, &ere);
        nmlp_str_puts(&ere, ")$");
        nmlp_matcher *m = open_text(&g, nmlp_str_text(&gbnf));
        assert_int_equal(regcomp(&regex, nmlp_str_text(&ere), REG_EXTENDED | REG_NOSUB), 0);
        for (int i = 0; i < 60; i++) {
            char text[10] = {0};
            for (uint64_t k = 0, n = nmlp_rng_below(&rng, 9); k < n; k++) text[k] = "abc"[nmlp_rng_below(&rng, 3)];
            bool want = regexec(&regex, text, 0, NULL, 0) == 0;
            if (matches(m, text) != want) fail_msg("%s: \"%s\" should%s match", gbnf.data, text, want ? "" : " not");
            n_matched += want;
        }
        regfree(&regex);
        nmlp_matcher_destroy(m);
        nmlp_grammar_destroy(g);
        nmlp_str_fini(&gbnf);
        nmlp_str_fini(&ere);
    }
    assert_true(n_matched > 400);
}

static void recursion_balances_brackets(void **state) {
    nmlp_grammar *g;
    (void)state;
    nmlp_matcher *m = open_text(&g, "# balanced\nroot ::= pair*\npair ::= \"(\" root \")\"\n  | \"[\" root \"]\"\n");
    assert_true(matches(m, ""));
    assert_true(matches(m, "([])[]"));
    assert_false(matches(m, "([)]"));
    assert_false(matches(m, "(("));
    char deep[4001];
    for (int i = 0; i < 2000; i++) {
        deep[i] = '(';
        deep[3999 - i] = ')';
    }
    deep[4000] = '\0';
    assert_true(matches(m, deep));
    deep[3999] = '\0';
    assert_false(matches(m, deep));
    nmlp_matcher_destroy(m);
    nmlp_grammar_destroy(g);
}

/* Every character once: a class takes it if and only if it is one of the class. */
static void classes_are_sets_of_characters(void **state) {
    static const struct {
        const char *text;
        uint32_t first, last;
        bool negated;
    } cases[] = {{"root ::= [\\u00e9-\\u4e2d]", 0xe9, 0x4e2d, false},
                 {"root ::= [^\\u0410-\\U0001F600]", 0x410, 0x1f600, true},
                 {"root ::= [\\x7f-\\u0800]", 0x7f, 0x800, false},
                 {"root ::= .", 0, 0x10ffff, false}};
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        nmlp_grammar *g;
        nmlp_matcher *m = open_text(&g, cases[k].text);
        for (uint32_t c = 1; c <= 0x10ffff; c += c < 0x900 ? 1 : 211) {
            char text[5] = {0};
            if (c >= 0xd800 && c < 0xe000) continue;
            if (c < 0x80) {
                text[0] = (char)c;
            } else if (c < 0x800) {
                text[0] = (char)(0xc0 | c >> 6);
                text[1] = (char)(0x80 | (c & 0x3f));
            } else if (c < 0x10000) {
                text[0] = (char)(0xe0 | c >> 12);
                text[1] = (char)(0x80 | (c >> 6 & 0x3f));
                text[2] = (char)(0x80 | (c & 0x3f));
            } else {
                text[0] = (char)(0xf0 | c >> 18);
                text[1] = (char)(0x80 | (c >> 12 & 0x3f));
                text[2] = (char)(0x80 | (c >> 6 & 0x3f));
                text[3] = (char)(0x80 | (c & 0x3f));
            }
            bool inside = c >= cases[k].first && c <= cases[k].last;
            if (matches(m, text) != (inside != cases[k].negated)) fail_msg("%s: U+%04X", cases[k].text, c);
        }
        assert_false(matches(m, "\xed\xa0\x80")); /* a surrogate */
        assert_false(matches(m, "\xc0\x80"));     /* overlong */
        nmlp_matcher_destroy(m);
        nmlp_grammar_destroy(g);
    }
}

static void forgetting_states_keeps_the_text(void **state) {
    nmlp_grammar *g;
    nmlp_err err;
    bool forgot;
    (void)state;
    nmlp_matcher *m = open_text(&g, "root ::= \"(\" root \")\" | \"x\"{20000}");
    int32_t at = nmlp_matcher_start(m);
    for (int i = 0; i < 50; i++) at = nmlp_matcher_next(m, at, '(');
    for (int i = 0; i < 20000; i++) {
        nmlp_assert_ok(nmlp_matcher_trim(m, &at, &forgot, &err), &err);
        at = nmlp_matcher_next(m, at, 'x');
        assert_true(at >= 0);
        assert_true(nmlp_matcher_states(m) < 10000);
    }
    for (int i = 0; i < 50; i++) {
        assert_false(nmlp_matcher_accepts(m, at));
        at = nmlp_matcher_next(m, at, ')');
        assert_true(at >= 0);
    }
    assert_true(nmlp_matcher_accepts(m, at) && nmlp_matcher_is_final(m, at));
    nmlp_matcher_destroy(m);
    nmlp_grammar_destroy(g);
}

static void wrong_grammars_are_refused_with_their_line(void **state) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "no rule \"root\""},
        {"root ::= a", "no rule \"a\""},
        {"root ::= \"x", "does not end"},
        {"root ::= [z-a]", "backwards"},
        {"root ::= []", "empty"},
        {"root ::= (\"a\"", ") is missing"},
        {"root ::= \"a\"\n\nroot ::= \"b\"", "line 3: a rule is defined twice"},
        {"root ::= \"a\"{3,1}", "ends before"},
        {"root ::= \"a\"{1000001}", "over 100000"},
        {"root ::= \"a\" )", "not understood"},
        {"root ::= \"\\q\"", "escape"},
        {"root ::= \"\\ud800\"", "no character"},
        {"root ::= b\nb ::= \"x\"? root \"y\" | \"z\"", "line 1: rule"},
        {"root ::= a\na ::= a \"x\" | \"y\"", "\"a\" begins with itself"},
        {"root ::= \"x\" b\nb ::= \"y\" b", "never ends"},
        {"root ::= a{100000}\na ::= (b b b b)\nb ::= ([a-z] [0-9] .){99999} c\nc ::= ([a-z] [0-9]){99999}", "steps"},
        {"nonsense", "::="}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nmlp_grammar *g;
        nmlp_err err;
        nmlp_status st = nmlp_grammar_parse(&g, cases[i].text, strlen(cases[i].text), &err);
        if (st == NMLP_OK) fail_msg("\"%s\" was taken", cases[i].text);
        assert_null(g);
        assert_string_equal(err.field, "grammar");
        if (!strstr(err.message, cases[i].part)) fail_msg("\"%s\": %s", cases[i].text, err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_expressions_match_what_regular_ones_do),
        cmocka_unit_test(recursion_balances_brackets),
        cmocka_unit_test(classes_are_sets_of_characters),
        cmocka_unit_test(forgetting_states_keeps_the_text),
        cmocka_unit_test(wrong_grammars_are_refused_with_their_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
