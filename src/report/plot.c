#include "report/plot.h"

#include <math.h>
#include <stdio.h>

#include "report/markup.h"

enum { NUMBER_MAX = 48 };
enum { LEFT = 64, RIGHT = 14, TOP = 12, BOTTOM = 50, TICKS_X = 6, TICKS_Y = 5, LABELS_MAX = 16 };
static const double marker = 4.2;

typedef struct frame {
    const nmlp_plot *plot;
    nmlp_scale x, y;
    size_t n_bars; /* series of bars */
    nmlp_str *out;
} frame;

static double place_x(const frame *f, double x) {
    double width = NMLP_PLOT_WIDTH - LEFT - RIGHT;
    if (f->plot->x.categories) return LEFT + width * (x + 0.5) / (double)f->plot->x.n;
    return LEFT + width * nmlp_scale_place(&f->x, x);
}

static double place_y(const frame *f, double y) {
    return TOP + (NMLP_PLOT_HEIGHT - TOP - BOTTOM) * (1 - nmlp_scale_place(&f->y, y));
}

static double x_of(const nmlp_plot_series *s, size_t i) { return s->x ? s->x[i] : (double)i; }

static bool can_show(const nmlp_scale *scale, double value) {
    return isfinite(value) && (scale->kind == NMLP_SCALE_LINEAR || value > 0);
}

/* All values along one axis, spreads included. Without memory for them `failed` is set. */
static nmlp_scale scale_of(const nmlp_plot *p, const nmlp_plot_axis *axis, bool vertical, int n_ticks, bool *failed) {
    nmlp_str values;
    double zero = 0;
    nmlp_str_init(&values);
    for (size_t k = 0; k < p->n_series; k++) {
        const nmlp_plot_series *s = &p->series[k];
        for (size_t i = 0; i < s->n; i++) {
            double x = x_of(s, i);
            nmlp_str_append(&values, vertical ? &s->y[i] : &x, sizeof x);
            if (vertical && s->high) nmlp_str_append(&values, &s->high[i], sizeof x);
            if (vertical && s->low) nmlp_str_append(&values, &s->low[i], sizeof x);
        }
    }
    if (axis->from_zero) nmlp_str_append(&values, &zero, sizeof zero);
    nmlp_scale scale =
        nmlp_scale_around(axis->kind, (const double *)(const void *)values.data, values.len / sizeof zero, n_ticks);
    *failed |= values.failed;
    nmlp_str_fini(&values);
    return scale;
}

/* 32768 rather than 3.28e+04, and 0.001 rather than 0.00. */
static void number_text(char text[NUMBER_MAX], double value) {
    double size = fabs(value);
    if (size != 0 && size < 1e-3)
        snprintf(text, NUMBER_MAX, "%.3g", value);
    else if (size >= 1000)
        snprintf(text, NUMBER_MAX, "%.0f", value);
    else
        snprintf(text, NUMBER_MAX, "%.4g", value);
}

static void put_tick_y(const frame *f, double value) {
    char text[NUMBER_MAX];
    double y = place_y(f, value);
    number_text(text, value);
    nmlp_str_printf(f->out,
                    "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" class=\"ty\">%s</text>\n", LEFT,
                    y, NMLP_PLOT_WIDTH - RIGHT, LEFT - 8, y + 4.5, text);
}

static void put_label_x(const frame *f, double x, const char *text) {
    nmlp_str_printf(f->out, "<text x=\"%.1f\" y=\"%d\" class=\"tx\">", x, NMLP_PLOT_HEIGHT - BOTTOM + 19);
    nmlp_markup_text(f->out, text);
    nmlp_str_puts(f->out, "</text>\n");
}

/* A name longer than its place is cut; what is pointed at and the table have it whole. */
static void put_category(const frame *f, size_t i, double place) {
    enum { LETTER = 7, LETTERS_MIN = 3 }; /* width of a letter */
    const char *name = f->plot->x.categories[i];
    int room = (int)(place / LETTER) > LETTERS_MIN ? (int)(place / LETTER) : LETTERS_MIN, letters = 0;
    char text[4 * NUMBER_MAX];
    size_t len = 0, fits = 0;
    for (; name[len] && len + 8 < sizeof text; len++) {
        if (((unsigned char)name[len] & 0xc0) == 0x80) continue; /* inside a letter of several bytes */
        if (letters < room) fits = len;
        letters++;
    }
    if (letters <= room && !name[len]) fits = len;
    snprintf(text, sizeof text, "%.*s%s", (int)fits, name, name[fits] ? "…" : "");
    put_label_x(f, place_x(f, (double)i), text);
}

static void put_ticks_x(const frame *f) {
    const nmlp_plot_axis *axis = &f->plot->x;
    double ticks[NMLP_SCALE_TICKS_MAX];
    if (axis->categories) {
        size_t every = 1 + (axis->n - 1) / LABELS_MAX;
        double place = (double)(NMLP_PLOT_WIDTH - LEFT - RIGHT) / (double)axis->n * (double)every;
        for (size_t i = 0; i < axis->n; i += every) put_category(f, i, place);
        return;
    }
    int n = axis->ticks ? (int)axis->n : nmlp_scale_ticks(&f->x, ticks);
    for (int i = 0; i < n; i++) {
        double value = axis->ticks ? axis->ticks[i] : ticks[i];
        char text[NUMBER_MAX];
        number_text(text, value);
        nmlp_str_printf(f->out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>\n", place_x(f, value), TOP,
                        NMLP_PLOT_HEIGHT - BOTTOM);
        put_label_x(f, place_x(f, value), text);
    }
}

static void put_axes(const frame *f) {
    double ticks[NMLP_SCALE_TICKS_MAX];
    int n = nmlp_scale_ticks(&f->y, ticks);
    for (int i = 0; i < n; i++) put_tick_y(f, ticks[i]);
    put_ticks_x(f);
    nmlp_str_printf(f->out, "<path class=\"axis\" d=\"M%d %dH%d\"/>\n", LEFT, NMLP_PLOT_HEIGHT - BOTTOM,
                    NMLP_PLOT_WIDTH - RIGHT);
    nmlp_str_printf(f->out, "<text class=\"lx\" x=\"%d\" y=\"%d\">", (LEFT + NMLP_PLOT_WIDTH - RIGHT) / 2,
                    NMLP_PLOT_HEIGHT - 8);
    nmlp_markup_text(f->out, f->plot->x.label);
    nmlp_str_printf(f->out, "</text>\n<text class=\"ly\" transform=\"translate(14,%d) rotate(-90)\">",
                    (TOP + NMLP_PLOT_HEIGHT - BOTTOM) / 2);
    nmlp_markup_text(f->out, f->plot->y.label);
    nmlp_str_puts(f->out, "</text>\n");
}

static void put_colour(const nmlp_plot_series *s, nmlp_str *out) {
    if (s->by_depth)
        nmlp_str_printf(out, " style=\"--c:hsl(%.0f 62%% 52%%)\"", 215 - 195 * s->depth);
    else
        nmlp_str_printf(out, " data-c=\"%d\"", (int)s->colour);
}

static void x_text(const nmlp_plot *p, const nmlp_plot_series *s, size_t i, char text[NUMBER_MAX]) {
    if (p->x.categories)
        snprintf(text, NUMBER_MAX, "%.40s", p->x.categories[(size_t)x_of(s, i)]);
    else
        number_text(text, x_of(s, i));
}

static void put_tip(const frame *f, const nmlp_plot_series *s, size_t i) {
    char x[NUMBER_MAX], y[NUMBER_MAX];
    nmlp_str_puts(f->out, " data-tip=\"");
    if (s->tips) {
        nmlp_markup_text(f->out, s->tips[i]);
    } else {
        x_text(f->plot, s, i, x);
        number_text(y, s->y[i]);
        nmlp_markup_text(f->out, s->name);
        nmlp_str_puts(f->out, "\n");
        nmlp_markup_text(f->out, f->plot->x.label);
        nmlp_str_puts(f->out, ": ");
        nmlp_markup_text(f->out, x);
        nmlp_str_puts(f->out, "\n");
        nmlp_markup_text(f->out, f->plot->y.label);
        nmlp_str_printf(f->out, ": %s", y);
        if (s->low && s->high) {
            number_text(x, s->low[i]);
            number_text(y, s->high[i]);
            nmlp_str_printf(f->out, "\n10th to 90th percentile: %s to %s", x, y);
        }
    }
    nmlp_str_putc(f->out, '"');
}

static void put_path(const frame *f, const nmlp_plot_series *s) {
    const char *word = "M";
    nmlp_str_printf(f->out, "<path class=\"%s\" d=\"", s->mark == NMLP_MARK_LIMIT ? "limit" : "line");
    for (size_t i = 0; i < s->n; i++) {
        double x = x_of(s, i);
        if (!can_show(&f->y, s->y[i]) || (!f->plot->x.categories && !can_show(&f->x, x))) continue;
        nmlp_str_printf(f->out, "%s%.1f %.1f", word, place_x(f, x), place_y(f, s->y[i]));
        word = "L";
    }
    nmlp_str_puts(f->out, "\"/>\n");
}

/* Another shape for every colour, for those who see no colours. */
static void put_marker(const frame *f, nmlp_colour colour, double x, double y) {
    double r = marker;
    switch (colour % 4) {
    case 0: nmlp_str_printf(f->out, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"", x, y, r); break;
    case 1:
        nmlp_str_printf(f->out, "<path class=\"dot\" d=\"M%.1f %.1fl%.1f %.1fh%.1fz\"", x, y - r - 1, r + 1, 2 * r,
                        -2 * (r + 1));
        break;
    case 2:
        nmlp_str_printf(f->out, "<path class=\"dot\" d=\"M%.1f %.1fh%.1fv%.1fh%.1fz\"", x - r, y - r, 2 * r, 2 * r,
                        -2 * r);
        break;
    default:
        nmlp_str_printf(f->out, "<path class=\"dot\" d=\"M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz\"", x, y - r - 1,
                        r + 1, r + 1, -r - 1, r + 1, -r - 1, -r - 1);
    }
}

static void put_points(const frame *f, const nmlp_plot_series *s) {
    for (size_t i = 0; i < s->n; i++) {
        double x = x_of(s, i);
        if (!can_show(&f->y, s->y[i]) || (!f->plot->x.categories && !can_show(&f->x, x))) continue;
        put_marker(f, s->by_depth ? NMLP_COLOUR_OURS : s->colour, place_x(f, x), place_y(f, s->y[i]));
        put_tip(f, s, i);
        nmlp_str_puts(f->out, "/>\n");
    }
}

static void put_spread(const frame *f, const nmlp_plot_series *s, size_t i, double x) {
    if (!s->low || !s->high || !can_show(&f->y, s->low[i]) || !can_show(&f->y, s->high[i])) return;
    double low = place_y(f, s->low[i]), high = place_y(f, s->high[i]);
    nmlp_str_printf(f->out, "<path class=\"spread\" d=\"M%.1f %.1fV%.1fM%.1f %.1fh8M%.1f %.1fh8\"/>\n", x, low, high,
                    x - 4, low, x - 4, high);
}

static void put_bars(const frame *f, const nmlp_plot_series *s, size_t which) {
    double group = (double)(NMLP_PLOT_WIDTH - LEFT - RIGHT) / (double)f->plot->x.n * 0.8;
    double width = fmin(group / (double)f->n_bars, 46), base = NMLP_PLOT_HEIGHT - BOTTOM;
    for (size_t i = 0; i < s->n; i++) {
        if (!can_show(&f->y, s->y[i])) continue;
        double x = place_x(f, x_of(s, i)) + width * ((double)which - 0.5 * (double)f->n_bars), y = place_y(f, s->y[i]);
        nmlp_str_printf(f->out, "<rect class=\"bar%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"",
                        s->hollow && s->hollow[i] ? " hollow" : "", x + 0.04 * width, y, 0.92 * width,
                        fmax(0, base - y));
        put_tip(f, s, i);
        nmlp_str_puts(f->out, "/>\n");
        put_spread(f, s, i, x + 0.5 * width);
    }
}

static void put_series(const frame *f) {
    size_t bar = 0;
    for (size_t k = 0; k < f->plot->n_series; k++) {
        const nmlp_plot_series *s = &f->plot->series[k];
        nmlp_str_puts(f->out, "<g");
        put_colour(s, f->out);
        nmlp_str_puts(f->out, ">\n");
        if (s->mark == NMLP_MARK_BARS) put_bars(f, s, bar++);
        if (s->mark == NMLP_MARK_LINE || s->mark == NMLP_MARK_CURVE || s->mark == NMLP_MARK_LIMIT) put_path(f, s);
        if (s->mark == NMLP_MARK_LINE || s->mark == NMLP_MARK_POINTS) put_points(f, s);
        nmlp_str_puts(f->out, "</g>\n");
    }
}

static void put_svg(const nmlp_plot *p, nmlp_str *out) {
    frame f = {.plot = p, .out = out};
    f.y = scale_of(p, &p->y, true, TICKS_Y, &out->failed);
    if (!p->x.categories) f.x = scale_of(p, &p->x, false, TICKS_X, &out->failed);
    for (size_t k = 0; k < p->n_series; k++) f.n_bars += p->series[k].mark == NMLP_MARK_BARS;
    nmlp_str_printf(out, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", NMLP_PLOT_WIDTH,
                    NMLP_PLOT_HEIGHT);
    nmlp_markup_text(out, p->title);
    nmlp_str_puts(out, "\">\n<desc>");
    nmlp_markup_text(out, p->about);
    nmlp_str_puts(out, "</desc>\n");
    put_axes(&f);
    put_series(&f);
    nmlp_str_puts(out, "</svg>\n");
}

/* ---- what stands around a chart: its legend and its numbers ---- */

static const char *key_class(nmlp_mark mark) {
    switch (mark) {
    case NMLP_MARK_LIMIT: return "key limit";
    case NMLP_MARK_BARS: return "key square";
    default: return "key";
    }
}

static void put_legend(const nmlp_plot *p, nmlp_str *out) {
    nmlp_str_puts(out, "<ul class=\"legend\">");
    for (size_t k = 0; k < p->n_series; k++) {
        const nmlp_plot_series *s = &p->series[k];
        if (!s->in_legend) continue;
        nmlp_str_puts(out, "<li");
        put_colour(s, out);
        nmlp_str_printf(out, "><span class=\"%s\"></span>", key_class(s->mark));
        nmlp_markup_text(out, s->name);
        nmlp_str_puts(out, "</li>");
    }
    nmlp_str_puts(out, "</ul>\n");
}

static void put_row(const nmlp_plot *p, const nmlp_plot_series *s, size_t i, nmlp_str *out) {
    char x[NUMBER_MAX], y[NUMBER_MAX];
    x_text(p, s, i, x);
    number_text(y, s->y[i]);
    nmlp_str_puts(out, "<tr><td>");
    nmlp_markup_text(out, s->name);
    nmlp_str_puts(out, "</td><td>");
    nmlp_markup_text(out, x);
    nmlp_str_printf(out, "</td><td>%s</td></tr>\n", y);
}

static void put_table(const nmlp_plot *p, nmlp_str *out) {
    nmlp_str_puts(out, "<details class=\"numbers\"><summary>Numbers</summary><div "
                       "class=\"scroll\"><table><thead><tr><th>series</th><th>");
    nmlp_markup_text(out, p->x.label);
    nmlp_str_puts(out, "</th><th>");
    nmlp_markup_text(out, p->y.label);
    nmlp_str_puts(out, "</th></tr></thead><tbody>\n");
    for (size_t k = 0; k < p->n_series; k++)
        for (size_t i = 0; i < p->series[k].n; i++)
            if (isfinite(p->series[k].y[i])) put_row(p, &p->series[k], i, out);
    nmlp_str_puts(out, "</tbody></table></div></details>\n");
}

void nmlp_plot_write(const nmlp_plot *p, nmlp_str *out) {
    nmlp_str_puts(out, "<h3>");
    nmlp_markup_text(out, p->title);
    nmlp_str_puts(out, "</h3>\n");
    put_legend(p, out);
    put_svg(p, out);
    put_table(p, out);
}
