#include "report/timeline.h"

#include <math.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "report/markup.h"

enum { EVENTS_MAX = 200000, WINDOW_US = 60, WIDTH = 1200, LEFT = 80, RIGHT = 40, LANE = 34, TOP = 60 };

static const char *const colours[] = {"#2f6fb3", "#d9822b", "#3f9b57", "#8a5bb5", "#7a7f87"};

void nmlp_timeline_init(nmlp_timeline *t, double total_us, bool window_only) {
    *t = (nmlp_timeline){.total_us = total_us > 0 ? total_us : 1, .max_events = EVENTS_MAX, .window_only = window_only};
    double length = fmin(WINDOW_US, t->total_us);
    t->window_start_us = (t->total_us - length) / 2;
    t->window_end_us = t->window_start_us + length;
}

void nmlp_timeline_fini(nmlp_timeline *t) {
    nmlp_mem_free(t->events);
    *t = (nmlp_timeline){0};
}

static void shade(nmlp_timeline *t, const nmlp_time_event *e) {
    double width = t->total_us / NMLP_TIMELINE_SHADES;
    int first = (int)(e->start_us / width), last = (int)(e->end_us / width);
    for (int i = first < 0 ? 0 : first; i <= last && i < NMLP_TIMELINE_SHADES; i++) {
        double begin = fmax(e->start_us, i * width), end = fmin(e->end_us, (i + 1) * width);
        if (end > begin) t->shade_us[e->engine][i] += end - begin;
    }
}

void nmlp_timeline_add(void *timeline, const nmlp_time_event *e) {
    nmlp_timeline *t = timeline;
    shade(t, e);
    if (t->window_only && (e->end_us < t->window_start_us || e->start_us > t->window_end_us)) return;
    if (t->n_events == t->max_events) {
        t->n_dropped++;
        return;
    }
    if (nmlp_mem_grow((void **)&t->events, &t->cap_events, t->n_events + 1, sizeof *t->events, NULL) != NMLP_OK) {
        t->failed = true;
        return;
    }
    t->events[t->n_events++] = *e;
}

void nmlp_timeline_write_json(const nmlp_timeline *t, const char *title, nmlp_str *out) {
    nmlp_json_writer w;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "displayTimeUnit", "ns");
    nmlp_json_begin_object(&w, "otherData");
    nmlp_json_put_string(&w, "title", title);
    nmlp_json_put_int(&w, "events_left_out", (int64_t)t->n_dropped);
    nmlp_json_end_object(&w);
    nmlp_json_begin_array(&w, "traceEvents");
    for (int e = 0; e < NMLP_N_ENGINES; e++) {
        nmlp_json_begin_object(&w, NULL);
        nmlp_json_put_string(&w, "name", "thread_name");
        nmlp_json_put_string(&w, "ph", "M");
        nmlp_json_put_int(&w, "pid", 1);
        nmlp_json_put_int(&w, "tid", e);
        nmlp_json_begin_object(&w, "args");
        nmlp_json_put_string(&w, "name", nmlp_nc_engine_name((nmlp_nc_engine)e));
        nmlp_json_end_object(&w);
        nmlp_json_end_object(&w);
    }
    for (size_t i = 0; i < t->n_events; i++) {
        const nmlp_time_event *e = &t->events[i];
        nmlp_json_begin_object(&w, NULL);
        nmlp_json_put_string(&w, "name", nmlp_op_name(e->op));
        nmlp_json_put_string(&w, "cat", e->what);
        nmlp_json_put_string(&w, "ph", "X");
        nmlp_json_put_number(&w, "ts", e->start_us);
        nmlp_json_put_number(&w, "dur", e->end_us - e->start_us);
        nmlp_json_put_int(&w, "pid", 1);
        nmlp_json_put_int(&w, "tid", e->engine);
        nmlp_json_end_object(&w);
    }
    nmlp_json_end_array(&w);
    nmlp_json_end_object(&w);
}

static void put_axis(nmlp_str *out, int top, double from_us, double to_us) {
    int bottom = top + NMLP_N_ENGINES * LANE;
    for (int i = 0; i <= 5; i++) {
        double x = LEFT + (WIDTH - LEFT - RIGHT) * i / 5.0;
        nmlp_str_printf(out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#ccc\"/>\n", x, top, x,
                        bottom);
        nmlp_str_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.1f</text>\n", x, bottom + 16,
                        from_us + (to_us - from_us) * i / 5);
    }
    for (int e = 0; e < NMLP_N_ENGINES; e++)
        nmlp_str_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 8, top + e * LANE + 21,
                        nmlp_nc_engine_name((nmlp_nc_engine)e));
}

static void put_shades(nmlp_str *out, const nmlp_timeline *t, int top) {
    double step = (double)(WIDTH - LEFT - RIGHT) / NMLP_TIMELINE_SHADES, width = t->total_us / NMLP_TIMELINE_SHADES;
    for (int e = 0; e < NMLP_N_ENGINES; e++)
        for (int i = 0; i < NMLP_TIMELINE_SHADES; i++) {
            double share = fmin(1.0, t->shade_us[e][i] / width);
            if (share < 0.01) continue;
            nmlp_str_printf(
                out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" fill-opacity=\"%.2f\"/>\n",
                LEFT + i * step, top + e * LANE + 4, step + 0.05, LANE - 8, colours[e], share);
        }
}

static void put_window(nmlp_str *out, const nmlp_timeline *t, int top) {
    double scale = (WIDTH - LEFT - RIGHT) / (t->window_end_us - t->window_start_us);
    for (size_t i = 0; i < t->n_events; i++) {
        const nmlp_time_event *e = &t->events[i];
        double begin = fmax(e->start_us, t->window_start_us), end = fmin(e->end_us, t->window_end_us);
        if (end <= begin) continue;
        bool overlaps = e->engine == NMLP_ENGINE_DMA; /* DMAs run side by side */
        nmlp_str_printf(
            out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" fill-opacity=\"%s\"><title>",
            LEFT + (begin - t->window_start_us) * scale, top + (int)e->engine * LANE + 4,
            fmax(0.3, (end - begin) * scale - 0.2), LANE - 8, colours[e->engine], overlaps ? "0.25" : "0.9");
        nmlp_str_printf(out, "%s ", nmlp_op_name(e->op));
        nmlp_markup_text(out, e->what);
        nmlp_str_printf(out, " %.3f us, %.3f us long</title></rect>\n", e->start_us, e->end_us - e->start_us);
    }
}

void nmlp_timeline_write_svg(const nmlp_timeline *t, const char *title, nmlp_str *out) {
    int second = TOP + NMLP_N_ENGINES * LANE + 70, height = second + NMLP_N_ENGINES * LANE + 40;
    nmlp_str_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        WIDTH, height, WIDTH, height);
    nmlp_str_printf(out, "<text x=\"%d\" y=\"22\" font-size=\"15\">", LEFT);
    nmlp_markup_text(out, title);
    nmlp_str_printf(out, " (simulated)</text>\n<text x=\"%d\" y=\"44\">whole kernel, us; darker: busier</text>\n",
                    LEFT);
    put_axis(out, TOP, 0, t->total_us);
    put_shades(out, t, TOP);
    nmlp_str_printf(out, "<text x=\"%d\" y=\"%d\">a window from its middle, us; point at a block for its name</text>\n",
                    LEFT, second - 14);
    put_axis(out, second, t->window_start_us, t->window_end_us);
    put_window(out, t, second);
    nmlp_str_puts(out, "</svg>\n");
}
