/* Templates: names, filters, refusals. */
#include "eval/template.h"
#include "lib/testing.h"

static nmlp_status lookup(void *ctx, const char *name, const char **value, nmlp_err *err) {
    if (strcmp(name, "x") != 0) return nmlp_fail(err, NMLP_E_MISSING, "no %s", name);
    *value = ctx;
    return NMLP_OK;
}

static void expect(const char *template, const char *x, const char *want) {
    nmlp_str out;
    nmlp_err err;
    nmlp_str_init(&out);
    nmlp_assert_ok(nmlp_template_expand(&out, template, lookup, (void *)(uintptr_t)x, &err), &err);
    assert_string_equal(nmlp_str_text(&out), want);
    nmlp_str_fini(&out);
}

static void names_are_replaced(void **state) {
    (void)state;
    expect("", "v", "");
    expect("Question: {x}\nAnswer:", "why?", "Question: why?\nAnswer:");
    expect("{x}{x}", "", "");
    expect("{{x} }", "v", "{x} }");
}

static void filters_change_the_value_in_turn(void **state) {
    (void)state;
    expect("{x|strip}", " \t a b\n", "a b");
    expect("{x|capitalize}", "hE Does", "He does");
    expect("{x|before:_}|{x|after:_|strip}", "a _ b _ c", "a |b _ c");
    expect("{x|strip}", "  ", "");
}

/* Worked by hand from the harness's preprocess(): strip, " [title]" to ". ", brackets out, double spaces to single. */
static void hellaswag_text_is_cleaned_as_the_harness_does(void **state) {
    (void)state;
    expect("{x|hellaswag}", " [header] How to bake [title] Mix it. [step] Stir. ", " How to bake. Mix it. Stir.");
    expect("{x|hellaswag}", "open [ bracket", "open [ bracket");
    expect("{x|hellaswag}", "a [x] b [y", "a b [y");
    expect("{x|hellaswag}", "three   spaces", "three  spaces"); /* replace() goes over the text once */
}

static void bad_templates_and_values_are_refused(void **state) {
    nmlp_str out;
    nmlp_err err;
    char text[] = "no gap";
    (void)state;
    nmlp_str_init(&out);
    nmlp_assert_fails(nmlp_template_check("a {x", &err), &err, NMLP_E_FORMAT, "not closed", NULL);
    nmlp_assert_fails(nmlp_template_check("{x|shout}", &err), &err, NMLP_E_FORMAT, "unknown filter", "shout", NULL);
    nmlp_assert_fails(nmlp_template_check("{x|before}", &err), &err, NMLP_E_FORMAT, "before", "needs", NULL);
    nmlp_assert_fails(nmlp_template_check("{x|strip:a}", &err), &err, NMLP_E_FORMAT, "strip", "takes no", NULL);
    nmlp_assert_fails(
        nmlp_template_check("{0123456789012345678901234567890123456789012345678901234567890123456789}", &err), &err,
        NMLP_E_FORMAT, "longer", NULL);
    nmlp_assert_fails(nmlp_template_expand(&out, "{y}", lookup, text, &err), &err, NMLP_E_MISSING, "no y", NULL);
    nmlp_assert_fails(nmlp_template_expand(&out, "{x|after:_}", lookup, text, &err), &err, NMLP_E_FORMAT, "\"x\"",
                      "\"_\"", NULL);
    nmlp_assert_ok(nmlp_template_check("{a.b|strip|after:x} {{", &err), &err);
    nmlp_str_fini(&out);
}

static void uses_finds_names_with_and_without_filters(void **state) {
    (void)state;
    assert_true(nmlp_template_uses("a {choice}", "choice"));
    assert_true(nmlp_template_uses("{choice|strip}", "choice"));
    assert_false(nmlp_template_uses("{choices} choice {{choice}", "choice"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_replaced),
        cmocka_unit_test(filters_change_the_value_in_turn),
        cmocka_unit_test(hellaswag_text_is_cleaned_as_the_harness_does),
        cmocka_unit_test(bad_templates_and_values_are_refused),
        cmocka_unit_test(uses_finds_names_with_and_without_filters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
