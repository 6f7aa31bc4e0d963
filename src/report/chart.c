#include "report/chart.h"

#include <stdio.h>

#include "report/markup.h"
#include "report/scale.h"

enum { LEFT = 80, RIGHT = 20, TOP = 84, BOTTOM = 40 };

static const char *const colours[] = {"#8c8c8c", "#b07aa1", "#e15759", "#f28e2b",
                                      "#edc948", "#4e79a7", "#59a14f", "#76b7b2"};

static void put_label(nmlp_str *out, double x, double y, const char *anchor, const char *style, const char *text) {
    nmlp_str_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" style=\"%s\">", x, y, anchor, style);
    nmlp_markup_text(out, text);
    nmlp_str_puts(out, "</text>\n");
}

enum { PLOT_BOTTOM = NMLP_CHART_HEIGHT - BOTTOM, PLOT_HEIGHT = NMLP_CHART_HEIGHT - TOP - BOTTOM };

static double y_of(const nmlp_scale *s, double value) { return PLOT_BOTTOM - PLOT_HEIGHT * nmlp_scale_place(s, value); }

static void put_axes(const nmlp_chart *c, const nmlp_scale *s, nmlp_str *out) {
    double ticks[NMLP_SCALE_TICKS_MAX];
    int n = nmlp_scale_ticks(s, ticks);
    for (int i = 0; i < n; i++) {
        char label[32];
        double y = y_of(s, ticks[i]);
        nmlp_str_printf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT,
                        NMLP_CHART_WIDTH - RIGHT, y, y);
        snprintf(label, sizeof label, "%g", ticks[i]);
        put_label(out, LEFT - 6, y + 4, "end", "font-size:12px", label);
    }
    nmlp_str_printf(out, "<g transform=\"translate(18,%.1f) rotate(-90)\">", PLOT_BOTTOM - PLOT_HEIGHT / 2.0);
    put_label(out, 0, 0, "middle", "font-size:12px", c->y_label);
    nmlp_str_puts(out, "</g>\n");
}

static void put_legend(const nmlp_chart *c, nmlp_str *out) {
    double step = (double)(NMLP_CHART_WIDTH - LEFT - RIGHT) / (double)c->n_series;
    for (size_t i = 0; i < c->n_series; i++) {
        double x = LEFT + step * (double)i;
        nmlp_str_printf(out, "<rect x=\"%.1f\" y=\"56\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, colours[i % 8]);
        put_label(out, x + 17, 66, "start", "font-size:12px", c->series[i]);
    }
}

static nmlp_scale scale_of(const nmlp_chart *c) {
    enum { LINEAR_TICKS = 5 };
    size_t n = c->n_series * c->n_categories;
    double ends[2] = {0, 0};
    if (!c->from_zero) return nmlp_scale_around(NMLP_SCALE_DECADES, c->values, n, 0);
    for (size_t i = 0; i < n; i++)
        if (c->values[i] > ends[1]) ends[1] = c->values[i];
    return nmlp_scale_around(NMLP_SCALE_LINEAR, ends, 2, LINEAR_TICKS);
}

void nmlp_chart_write(const nmlp_chart *c, int top, nmlp_str *out) {
    nmlp_scale s = scale_of(c);
    double group = (double)(NMLP_CHART_WIDTH - LEFT - RIGHT) / (double)c->n_categories,
           bar = group * 0.82 / (double)c->n_series;
    nmlp_str_printf(out, "<svg x=\"0\" y=\"%d\" width=\"%d\" height=\"%d\">\n", top, NMLP_CHART_WIDTH,
                    NMLP_CHART_HEIGHT);
    put_label(out, LEFT, 24, "start", "font-size:16px;font-weight:bold", c->title);
    put_label(out, LEFT, 42, "start", "font-size:12px;fill:#555", c->subtitle);
    put_axes(c, &s, out);
    put_legend(c, out);
    for (size_t k = 0; k < c->n_categories; k++) {
        double x0 = LEFT + group * ((double)k + 0.09);
        for (size_t i = 0; i < c->n_series; i++) {
            double v = c->values[i * c->n_categories + k];
            if (!(v > 0)) continue;
            double y = y_of(&s, v);
            nmlp_str_printf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>",
                            x0 + bar * (double)i, y, bar * 0.92, PLOT_BOTTOM - y, colours[i % 8]);
            nmlp_markup_text(out, c->series[i]);
            nmlp_str_printf(out, " at %s: %.4g</title></rect>\n", c->categories[k], v);
        }
        put_label(out, LEFT + group * ((double)k + 0.5), NMLP_CHART_HEIGHT - BOTTOM + 18, "middle", "font-size:12px",
                  c->categories[k]);
    }
    nmlp_str_puts(out, "</svg>\n");
}

void nmlp_chart_write_file(const nmlp_chart *charts, size_t n_charts, nmlp_str *out) {
    int height = NMLP_CHART_HEIGHT * (int)n_charts;
    nmlp_str_printf(out,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                    "font-family=\"sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                    NMLP_CHART_WIDTH, height, NMLP_CHART_WIDTH, height);
    for (size_t i = 0; i < n_charts; i++) nmlp_chart_write(&charts[i], NMLP_CHART_HEIGHT * (int)i, out);
    nmlp_str_puts(out, "</svg>\n");
}
