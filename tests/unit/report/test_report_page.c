/* A page: text stays text, charts stand where arithmetic puts them, data cannot end its element. */
#include <math.h>

#include "lib/testing.h"
#include "report/markup.h"
#include "report/timeline.h"

static void has(const nmlp_str *out, const char *text) {
    if (!strstr(nmlp_str_text(out), text)) fail_msg("no \"%s\" in: %s", text, nmlp_str_text(out));
}

static void lacks(const nmlp_str *out, const char *text) {
    if (strstr(nmlp_str_text(out), text)) fail_msg("\"%s\" in: %s", text, nmlp_str_text(out));
}

static void text_is_escaped(void **state) {
    nmlp_str out;
    (void)state;
    nmlp_str_init(&out);
    nmlp_markup_text(&out, "<a href=\"x\">Tom & 'Jerry'</a> µ");
    assert_string_equal(nmlp_str_text(&out), "&lt;a href=&quot;x&quot;&gt;Tom &amp; &#39;Jerry&#39;&lt;/a&gt; µ");
    nmlp_str_fini(&out);
}

static void json_cannot_end_its_element(void **state) {
    nmlp_str json, out;
    (void)state;
    nmlp_str_init(&json);
    nmlp_str_init(&out);
    nmlp_str_puts(&json, "{\"a\":\"</script><!-- & -->\"}");
    nmlp_markup_json(&out, &json);
    assert_string_equal(nmlp_str_text(&out), "{\"a\":\"\\u003c/script\\u003e\\u003c!-- \\u0026 --\\u003e\"}");
    nmlp_str_fini(&json);
    nmlp_str_fini(&out);
}

/* The plot area is 64..546 wide and 12..270 high; 0..10 is a round range already. */
static void points_stand_where_they_belong(void **state) {
    const double x[] = {0, 5, 7, 10}, y[] = {0, 10, NAN, 5};
    const nmlp_plot_series series = {.name = "a<b", .mark = NMLP_MARK_LINE, .x = x, .y = y, .n = 4, .in_legend = true};
    const nmlp_plot plot = {.title = "t<",
                            .about = "about \"it\"",
                            .x = {.label = "x&y"},
                            .y = {.label = "ms"},
                            .series = &series,
                            .n_series = 1};
    nmlp_str out;
    (void)state;
    nmlp_str_init(&out);
    nmlp_plot_write(&plot, &out);
    has(&out, "d=\"M64.0 270.0L305.0 12.0L546.0 141.0\"");
    has(&out, "aria-label=\"t&lt;\"");
    has(&out, "<desc>about &quot;it&quot;</desc>");
    has(&out, ">x&amp;y</text>");
    has(&out, "data-tip=\"a&lt;b\nx&amp;y: 5\nms: 10\"");
    has(&out, "<tr><td>a&lt;b</td><td>10</td><td>5</td></tr>");
    lacks(&out, "nan");
    lacks(&out, "a<b");
    nmlp_str_fini(&out);
}

/* Two groups 241 wide, bars of 46 each (the most): the first group's middle is 184.5, so bars begin at 138.5 and 184.5.
 */
static void bars_stand_side_by_side(void **state) {
    const double a[] = {5, 10}, low[] = {4, 8}, high[] = {6, 10}, b[] = {10, NAN};
    const bool hollow[] = {true, false};
    const char *const names[] = {"dense", "rank 8"};
    const nmlp_plot_series series[] = {
        {.name = "ours", .mark = NMLP_MARK_BARS, .y = a, .low = low, .high = high, .hollow = hollow, .n = 2},
        {.name = "theirs", .mark = NMLP_MARK_BARS, .colour = NMLP_COLOUR_PAPER, .y = b, .n = 2}};
    const nmlp_plot plot = {.title = "t",
                            .about = "a",
                            .x = {.label = "x", .categories = names, .n = 2},
                            .y = {.label = "y", .from_zero = true},
                            .series = series,
                            .n_series = 2};
    nmlp_str out;
    (void)state;
    nmlp_str_init(&out);
    nmlp_plot_write(&plot, &out);
    has(&out, "<rect class=\"bar hollow\" x=\"140.3\" y=\"141.0\" width=\"42.3\" height=\"129.0\"");
    has(&out, "<rect class=\"bar\" x=\"186.3\" y=\"12.0\" width=\"42.3\" height=\"258.0\"");
    has(&out, "class=\"spread\" d=\"M161.5 166.8V115.2");
    has(&out, "10th to 90th percentile: 4 to 6");
    lacks(&out, "nan");
    nmlp_str_fini(&out);
}

static void identifiers_are_escaped(void **state) {
    nmlp_page page;
    (void)state;
    nmlp_page_init(&page);
    nmlp_page_section_begin(&page, "a\"><b>", "t", "lead");
    nmlp_page_card(&page, "1", "one", "a\"><b>");
    lacks(&page.nav, "<b>");
    lacks(&page.cards, "<b>");
    has(&page.body, "<section id=\"a&quot;&gt;&lt;b&gt;\">");
    nmlp_page_fini(&page);
}

/* 482 wide: three names have room for 22 letters each. */
static void names_of_categories_are_text_and_fit(void **state) {
    const double y[] = {1, 2, 3};
    const char *const names[] = {"\"><b>", "µµµµµµµµµµµµµµµµµµµµµµ", "as many letters as there is no room for"};
    const nmlp_plot_series series = {.name = "s", .mark = NMLP_MARK_BARS, .y = y, .n = 3, .in_legend = true};
    const nmlp_plot plot = {.title = "t",
                            .about = "about",
                            .x = {.label = "x", .categories = names, .n = 3},
                            .y = {.label = "y", .from_zero = true},
                            .series = &series,
                            .n_series = 1};
    nmlp_str out;
    (void)state;
    nmlp_str_init(&out);
    nmlp_plot_write(&plot, &out);
    lacks(&out, "<b>");
    has(&out, ">&quot;&gt;&lt;b&gt;</text>");
    has(&out, ">µµµµµµµµµµµµµµµµµµµµµµ</text>");
    has(&out, ">as many letters as th…</text>");
    has(&out, "as many letters as there is no room for</");
    nmlp_str_fini(&out);
}

static void a_page_is_whole(void **state) {
    const char *const footer[] = {"made <here>"};
    const nmlp_page_head head = {.title = "T&T", .subtitle = "s", .footer = footer, .n_footer = 1};
    nmlp_page page;
    nmlp_str out;
    (void)state;
    nmlp_page_init(&page);
    nmlp_str_init(&out);
    nmlp_page_section_begin(&page, "one", "One <1>", "lead");
    nmlp_page_command(&page, "first && second\nthird");
    nmlp_page_section_end(&page);
    nmlp_page_card(&page, "2×", "faster", "one");
    nmlp_page_write(&page, &head, &out);
    has(&out, "<title>T&amp;T</title>");
    has(&out, "<a href=\"#one\">One &lt;1&gt;</a>");
    has(&out, "<code><span>first &amp;&amp; second</span>\n<span>third</span></code>");
    has(&out, "<a class=\"card\" href=\"#one\"><strong>2×</strong>");
    has(&out, "<p>made &lt;here&gt;</p>");
    has(&out, "prefers-color-scheme");
    has(&out, "</html>\n");
    assert_int_equal(page.n_sections, 1);
    nmlp_str_fini(&out);
    nmlp_page_fini(&page);
}

static void add(nmlp_timeline *t, nmlp_nc_engine engine, nmlp_op op, const char *what, double start_us, double end_us) {
    nmlp_timeline_add(t, &(nmlp_time_event){engine, op, what, start_us, end_us});
}

static void a_timeline_keeps_every_event(void **state) {
    nmlp_timeline t;
    nmlp_page page;
    (void)state;
    nmlp_page_init(&page);
    nmlp_timeline_init(&t, 6, false);
    add(&t, NMLP_ENGINE_TENSOR, NMLP_OP_MATMUL, "acc</script>", 1, 1.5);
    add(&t, NMLP_ENGINE_TENSOR, NMLP_OP_MATMUL, "acc</script>", 2, 3);
    add(&t, NMLP_ENGINE_DMA, NMLP_OP_DMA_STORE, "y", 3, 6);
    nmlp_page_timeline(&page, &t, "title", "about", "command");
    has(&page.body, "\"total_ns\":6000,\"covered_ns\":6000");
    has(&page.body, "\"start\":[1000,1000],\"length\":[500,1000],\"word\":[0,0],\"words\":[\"nc_matmul "
                    "acc\\u003c/script\\u003e\"]");
    has(&page.body, "\"name\":\"DMA out\"");
    lacks(&page.body, "\"name\":\"DMA in\"");
    lacks(&page.body, "\"name\":\"vector\"");
    has(&page.body, "role=\"img\" aria-label=\"title. about\"");
    nmlp_timeline_fini(&t);
    nmlp_page_fini(&page);
}

/* Half of the second of three events is the last thing known one by one. */
static void a_long_timeline_says_how_far_it_goes(void **state) {
    nmlp_timeline t;
    nmlp_page page;
    (void)state;
    nmlp_page_init(&page);
    nmlp_timeline_init(&t, 10, false);
    t.max_events = 2;
    add(&t, NMLP_ENGINE_VECTOR, NMLP_OP_COPY, "a", 0, 1);
    add(&t, NMLP_ENGINE_VECTOR, NMLP_OP_COPY, "a", 4, 5);
    add(&t, NMLP_ENGINE_VECTOR, NMLP_OP_COPY, "a", 9, 10);
    nmlp_page_timeline(&page, &t, "title", "about", "command");
    has(&page.body, "\"total_ns\":10000,\"covered_ns\":4000");
    has(&page.body, "100,100],\"start\":[0,4000]"); /* shades know the third event too */
    nmlp_timeline_fini(&t);
    nmlp_page_fini(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_escaped),
        cmocka_unit_test(json_cannot_end_its_element),
        cmocka_unit_test(points_stand_where_they_belong),
        cmocka_unit_test(bars_stand_side_by_side),
        cmocka_unit_test(identifiers_are_escaped),
        cmocka_unit_test(names_of_categories_are_text_and_fit),
        cmocka_unit_test(a_page_is_whole),
        cmocka_unit_test(a_timeline_keeps_every_event),
        cmocka_unit_test(a_long_timeline_says_how_far_it_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
