/* Line charts: points stand where arithmetic on paper puts them. */
#include <math.h>

#include "lib/testing.h"
#include "report/curve.h"

/* The panel is 72..700 wide and 34..200 high; 0..10 is a round range already. */
static void points_stand_where_they_belong(void **state) {
    const double x[] = {0, 5, 7, 10};
    const double y[] = {0, 10, NAN, 5};
    nmlp_str out;
    nmlp_curve curve = {.title = "loss", .x = x, .y = y, .n = 4};
    (void)state;
    nmlp_str_init(&out);
    nmlp_curve_svg(&out, "step", &curve, 1);
    assert_non_null(strstr(nmlp_str_text(&out), "d=\"M72.0 200.0L386.0 34.0L700.0 117.0\""));
    assert_non_null(strstr(nmlp_str_text(&out), ">loss</text>"));
    assert_non_null(strstr(nmlp_str_text(&out), ">step</text>"));
    assert_null(strstr(nmlp_str_text(&out), "nan"));
    nmlp_str_fini(&out);
}

static void constant_and_empty_curves_are_drawn(void **state) {
    const double x[] = {0, 1};
    const double y[] = {3, 3};
    const double nothing[] = {NAN, NAN};
    nmlp_str out;
    nmlp_curve curves[] = {{.title = "a", .x = x, .y = y, .n = 2}, {.title = "b", .x = x, .y = nothing, .n = 2}};
    (void)state;
    nmlp_str_init(&out);
    nmlp_curve_svg(&out, "step", curves, 2);
    assert_null(strstr(nmlp_str_text(&out), "nan"));
    assert_null(strstr(nmlp_str_text(&out), "inf"));
    assert_non_null(strstr(nmlp_str_text(&out), "</svg>"));
    nmlp_str_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(points_stand_where_they_belong),
        cmocka_unit_test(constant_and_empty_curves_are_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
