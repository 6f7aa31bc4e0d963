#include "report/timeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "report/markup.h"

/* What one line of the figure shows; transfers are split by direction. */
typedef struct lane {
    const char *name, *colour;
    nmlp_nc_engine engine;
    bool stores;
} lane;

static const lane lanes[] = {
    {"tensor", "--c0", NMLP_ENGINE_TENSOR, false}, {"vector", "--c1", NMLP_ENGINE_VECTOR, false},
    {"scalar", "--c5", NMLP_ENGINE_SCALAR, false}, {"gpsimd", "--c4", NMLP_ENGINE_GPSIMD, false},
    {"DMA in", "--c3", NMLP_ENGINE_DMA, false},    {"DMA out", "--c6", NMLP_ENGINE_DMA, true},
};
enum { N_LANES = sizeof lanes / sizeof lanes[0], WORDS_MAX = 256 };

/* The different things that happen on a lane: an op and what it is done to. */
typedef struct words {
    nmlp_op op[WORDS_MAX];
    const char *what[WORDS_MAX];
    int n;
} words;

static bool is_on(const lane *l, const nmlp_time_event *e) {
    return e->engine == l->engine && (l->engine != NMLP_ENGINE_DMA || l->stores == (e->op == NMLP_OP_DMA_STORE));
}

static int word_of(words *w, const nmlp_time_event *e) {
    for (int i = 0; i < w->n; i++)
        if (w->op[i] == e->op && strcmp(w->what[i], e->what) == 0) return i;
    if (w->n == WORDS_MAX) return WORDS_MAX - 1;
    w->op[w->n] = e->op;
    w->what[w->n] = e->what;
    return w->n++;
}

static int64_t ns(double us) { return llround(us * 1e3); }

/* Busy time of every bin. A trace with events left out knows it for whole engines only. */
static void fill_busy(double busy_us[NMLP_TIMELINE_SHADES], const nmlp_timeline *t, const lane *l) {
    double bin_us = t->total_us / NMLP_TIMELINE_SHADES;
    for (int i = 0; i < NMLP_TIMELINE_SHADES; i++) busy_us[i] = t->n_dropped ? t->shade_us[l->engine][i] : 0;
    for (size_t k = 0; k < t->n_events && t->n_dropped == 0; k++) {
        const nmlp_time_event *e = &t->events[k];
        if (!is_on(l, e)) continue;
        int last = (int)fmin(e->end_us / bin_us, NMLP_TIMELINE_SHADES - 1);
        for (int i = (int)(e->start_us / bin_us); i <= last; i++)
            busy_us[i] += fmin(e->end_us, (i + 1) * bin_us) - fmax(e->start_us, i * bin_us);
    }
}

static void put_busy(nmlp_json_writer *w, const nmlp_timeline *t, const lane *l) {
    double busy_us[NMLP_TIMELINE_SHADES], bin_us = t->total_us / NMLP_TIMELINE_SHADES;
    fill_busy(busy_us, t, l);
    nmlp_json_begin_array(w, "busy");
    for (int i = 0; i < NMLP_TIMELINE_SHADES; i++)
        nmlp_json_put_int(w, NULL, llround(100 * fmin(1, busy_us[i] / bin_us)));
    nmlp_json_end_array(w);
}

static void put_lane(nmlp_json_writer *w, const nmlp_timeline *t, const lane *l) {
    words known = {.n = 0};
    int64_t before = 0;
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_string(w, "name", l->name);
    nmlp_json_put_string(w, "colour", l->colour);
    put_busy(w, t, l);
    nmlp_json_begin_array(w, "start");
    for (size_t i = 0; i < t->n_events; i++) {
        if (!is_on(l, &t->events[i])) continue;
        int64_t start = ns(t->events[i].start_us);
        nmlp_json_put_int(w, NULL, start - before);
        before = start;
    }
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "length");
    for (size_t i = 0; i < t->n_events; i++)
        if (is_on(l, &t->events[i])) nmlp_json_put_int(w, NULL, ns(t->events[i].end_us) - ns(t->events[i].start_us));
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "word");
    for (size_t i = 0; i < t->n_events; i++)
        if (is_on(l, &t->events[i])) nmlp_json_put_int(w, NULL, word_of(&known, &t->events[i]));
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "words");
    for (int i = 0; i < known.n; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s %s", nmlp_op_name(known.op[i]), known.what[i]);
        nmlp_json_put_string(w, NULL, text);
    }
    nmlp_json_end_array(w);
    nmlp_json_end_object(w);
}

static bool is_used(const nmlp_timeline *t, const lane *l) {
    for (size_t i = 0; i < t->n_events; i++)
        if (is_on(l, &t->events[i])) return true;
    return false;
}

/* Until when every event is there. */
static double covered_us(const nmlp_timeline *t) {
    double until = 0;
    if (t->n_dropped == 0) return t->total_us;
    for (size_t i = 0; i < t->n_events; i++) until = fmax(until, t->events[i].start_us);
    return until;
}

static void put_data(const nmlp_timeline *t, nmlp_str *out) {
    nmlp_json_writer w;
    nmlp_str json;
    nmlp_str_init(&json);
    nmlp_json_writer_init(&w, &json);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_int(&w, "total_ns", ns(t->total_us));
    nmlp_json_put_int(&w, "covered_ns", ns(covered_us(t)));
    nmlp_json_begin_array(&w, "lanes");
    for (size_t i = 0; i < N_LANES; i++)
        if (is_used(t, &lanes[i])) put_lane(&w, t, &lanes[i]);
    nmlp_json_end_array(&w);
    nmlp_json_end_object(&w);
    nmlp_markup_json(out, &json);
    if (json.failed) out->failed = true;
    nmlp_str_fini(&json);
}

void nmlp_page_timeline(nmlp_page *page, const nmlp_timeline *t, const char *title, const char *about,
                        const char *command) {
    static const char *const buttons[][2] = {
        {"in", "Zoom in"}, {"out", "Zoom out"}, {"left", "Earlier"}, {"right", "Later"}, {"all", "Whole kernel"}};
    nmlp_str *out = &page->body;
    page->n_charts++;
    nmlp_str_puts(out, "<figure class=\"timeline\">\n<h3>");
    nmlp_markup_text(out, title);
    nmlp_str_puts(out, "</h3>\n<div class=\"bar-row\">");
    for (size_t i = 0; i < sizeof buttons / sizeof buttons[0]; i++)
        nmlp_str_printf(out, "<button type=\"button\" data-act=\"%s\">%s</button>", buttons[i][0], buttons[i][1]);
    nmlp_str_puts(out, "<output></output></div>\n<canvas tabindex=\"0\" role=\"img\" aria-label=\"");
    nmlp_markup_text(out, title);
    nmlp_str_puts(out, ". ");
    nmlp_markup_text(out, about);
    nmlp_str_puts(out, "\">");
    nmlp_markup_text(out, about);
    nmlp_str_puts(out, "</canvas>\n<p class=\"hint\">Wheel or pinch zooms, dragging moves, pointing at a block names "
                       "it; with the keyboard: "
                       "+ − 0 and arrows.</p>\n<script type=\"application/json\">");
    put_data(t, out);
    nmlp_str_puts(out, "</script>\n");
    nmlp_page_command(page, command);
    nmlp_str_puts(out, "</figure>\n");
}
