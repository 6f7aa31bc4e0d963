#include "report/curve.h"

#include <math.h>

#include "report/scale.h"

enum { WIDTH = 720, PANEL = 240, LEFT = 72, RIGHT = 20, TOP = 34, BOTTOM = 40, TICKS = 5 };

static double place_x(const nmlp_scale *r, double x) { return LEFT + (WIDTH - LEFT - RIGHT) * nmlp_scale_place(r, x); }

static double place_y(const nmlp_scale *r, double y, int top) {
    return top + (PANEL - TOP - BOTTOM) * (1 - nmlp_scale_place(r, y));
}

static void put_axes(nmlp_str *out, const nmlp_scale *rx, const nmlp_scale *ry, int top) {
    int bottom = top + PANEL - TOP - BOTTOM;
    double ticks[NMLP_SCALE_TICKS_MAX];
    int n = nmlp_scale_ticks(ry, ticks);
    for (int i = 0; i < n; i++) {
        double at = place_y(ry, ticks[i], top);
        nmlp_str_printf(
            out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
            LEFT, at, WIDTH - RIGHT, LEFT - 8, at + 4, ticks[i]);
    }
    n = nmlp_scale_ticks(rx, ticks);
    for (int i = 0; i < n; i++)
        nmlp_str_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>\n", place_x(rx, ticks[i]),
                        bottom + 18, ticks[i]);
}

static void put_line(nmlp_str *out, const nmlp_curve *c, const nmlp_scale *rx, const nmlp_scale *ry, int top) {
    const char *word = "M";
    nmlp_str_puts(out, "<path class=\"line\" d=\"");
    for (int64_t i = 0; i < c->n; i++) {
        if (!isfinite(c->y[i])) continue;
        nmlp_str_printf(out, "%s%.1f %.1f", word, place_x(rx, c->x[i]), place_y(ry, c->y[i], top));
        word = "L";
    }
    nmlp_str_puts(out, "\"/>\n");
}

void nmlp_curve_svg(nmlp_str *out, const char *x_title, const nmlp_curve *curves, int n_curves) {
    int height = n_curves * PANEL + 10;
    nmlp_str_printf(out,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                    "font-family=\"sans-serif\" font-size=\"12\">\n<style>.grid{stroke:#ddd;fill:none}"
                    ".line{stroke:#1f6fb4;stroke-width:1.6;fill:none}</style>\n"
                    "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                    WIDTH, height, WIDTH, height);
    for (int i = 0; i < n_curves; i++) {
        const nmlp_curve *c = &curves[i];
        int top = i * PANEL + TOP;
        nmlp_scale rx = nmlp_scale_around(NMLP_SCALE_LINEAR, c->x, (size_t)c->n, TICKS);
        nmlp_scale ry = nmlp_scale_around(NMLP_SCALE_LINEAR, c->y, (size_t)c->n, TICKS);
        nmlp_str_printf(out, "<text x=\"%d\" y=\"%d\" font-size=\"14\">%s</text>\n", LEFT, top - 12, c->title);
        put_axes(out, &rx, &ry, top);
        put_line(out, c, &rx, &ry, top);
        nmlp_str_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", WIDTH - RIGHT,
                        top + PANEL - TOP - 6, x_title);
    }
    nmlp_str_puts(out, "</svg>\n");
}
