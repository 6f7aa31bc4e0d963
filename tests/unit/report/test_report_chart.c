/* Bar charts: bars are as long as arithmetic on paper says. */
#include "lib/testing.h"
#include "report/chart.h"

static const char *const categories[] = {"a", "b"};
static const char *const series[] = {"ours"};

static void expect(const nmlp_chart *chart, const char *const *parts, size_t n) {
    nmlp_str out;
    nmlp_str_init(&out);
    nmlp_chart_write(chart, 0, &out);
    for (size_t i = 0; i < n; i++)
        if (!strstr(nmlp_str_text(&out), parts[i])) fail_msg("the chart has no %s:\n%s", parts[i], nmlp_str_text(&out));
    nmlp_str_fini(&out);
}

/* The plot is 296 high, from 84 to 380. From 0 to 100, a bar of 50 is half of it. */
static void bars_from_zero_are_as_long_as_their_values(void **state) {
    const double values[] = {100, 50};
    const char *const parts[] = {"y=\"84.0\"",       "height=\"296.0\"", "y=\"232.0\"",
                                 "height=\"148.0\"", ">0</text>",        ">100</text>"};
    nmlp_chart chart = {.title = "t",
                        .subtitle = "s",
                        .y_label = "us",
                        .categories = categories,
                        .n_categories = 2,
                        .series = series,
                        .n_series = 1,
                        .values = values,
                        .from_zero = true};
    (void)state;
    expect(&chart, parts, 6);
}

/* From 10 to 1000, a bar of 100 is half of it; nothing is drawn for a case that was not measured. */
static void bars_on_decades_have_lengths_of_logarithms(void **state) {
    const double values[] = {100, 1000, 10, 0};
    const char *const more[] = {"a", "b", "c", "none"};
    const char *const parts[] = {"y=\"232.0\"",    "height=\"148.0\"", "height=\"296.0\"",
                                 "height=\"0.0\"", ">none</text>",     "ours at c: 10<"};
    nmlp_chart chart = {.title = "t",
                        .subtitle = "s",
                        .y_label = "us",
                        .categories = more,
                        .n_categories = 4,
                        .series = series,
                        .n_series = 1,
                        .values = values};
    (void)state;
    expect(&chart, parts, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bars_from_zero_are_as_long_as_their_values),
        cmocka_unit_test(bars_on_decades_have_lengths_of_logarithms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
