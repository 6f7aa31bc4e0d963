#include "report/curve.h"

#include <math.h>

enum { WIDTH = 720, PANEL = 240, LEFT = 72, RIGHT = 20, TOP = 34, BOTTOM = 40, TICKS = 5 };

struct range {
    double low, high, step;
};

/* A round step of 1, 2 or 5 times a power of ten. */
static double round_step(double span) {
    double power = pow(10, floor(log10(span / TICKS)));
    double rest = span / TICKS / power;
    return power * (rest > 5 ? 10 : rest > 2 ? 5 : rest > 1 ? 2 : 1);
}

static struct range range_of(const double *values, int64_t n) {
    struct range r = {.low = INFINITY, .high = -INFINITY};
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) continue;
        r.low = fmin(r.low, values[i]);
        r.high = fmax(r.high, values[i]);
    }
    if (!(r.low <= r.high)) r.low = r.high = 0;
    if (r.low == r.high) r.high = r.low + (r.low != 0 ? fabs(r.low) * 0.1 : 1);
    r.step = round_step(r.high - r.low);
    r.low = floor(r.low / r.step + 1e-9) * r.step;
    r.high = ceil(r.high / r.step - 1e-9) * r.step;
    return r;
}

static double place_x(const struct range *r, double x) {
    return LEFT + (WIDTH - LEFT - RIGHT) * (x - r->low) / (r->high - r->low);
}

static double place_y(const struct range *r, double y, int top) {
    return top + (PANEL - TOP - BOTTOM) * (1 - (y - r->low) / (r->high - r->low));
}

static void put_axes(nmlp_str *out, const struct range *rx, const struct range *ry, int top) {
    int bottom = top + PANEL - TOP - BOTTOM;
    for (double y = ry->low; y <= ry->high + 0.5 * ry->step; y += ry->step) {
        double at = place_y(ry, y, top);
        nmlp_str_printf(out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
                        LEFT, at, WIDTH - RIGHT, LEFT - 8, at + 4, fabs(y) < 1e-9 * ry->step ? 0 : y);
    }
    for (double x = rx->low; x <= rx->high + 0.5 * rx->step; x += rx->step)
        nmlp_str_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>\n", place_x(rx, x), bottom + 18, x);
}

static void put_line(nmlp_str *out, const nmlp_curve *c, const struct range *rx, const struct range *ry, int top) {
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
        struct range rx = range_of(c->x, c->n);
        struct range ry = range_of(c->y, c->n);
        nmlp_str_printf(out, "<text x=\"%d\" y=\"%d\" font-size=\"14\">%s</text>\n", LEFT, top - 12, c->title);
        put_axes(out, &rx, &ry, top);
        put_line(out, c, &rx, &ry, top);
        nmlp_str_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", WIDTH - RIGHT, top + PANEL - TOP - 6,
                        x_title);
    }
    nmlp_str_puts(out, "</svg>\n");
}
