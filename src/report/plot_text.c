/* What stands around a chart: its legend and its numbers. */
#include <math.h>

#include "report/markup.h"
#include "report/plot_internal.h"

static const char *key_class(nmlp_mark mark) {
    switch (mark) {
    case NMLP_MARK_LIMIT: return "key limit";
    case NMLP_MARK_BARS: return "key square";
    default: return "key";
    }
}

void nmlp_plot_legend(const nmlp_plot *p, nmlp_str *out) {
    nmlp_str_puts(out, "<ul class=\"legend\">");
    for (size_t k = 0; k < p->n_series; k++) {
        const nmlp_plot_series *s = &p->series[k];
        if (!s->in_legend) continue;
        nmlp_str_puts(out, "<li");
        nmlp_plot_colour(s, out);
        nmlp_str_printf(out, "><span class=\"%s\"></span>", key_class(s->mark));
        nmlp_markup_text(out, s->name);
        nmlp_str_puts(out, "</li>");
    }
    nmlp_str_puts(out, "</ul>\n");
}

static void put_row(const nmlp_plot *p, const nmlp_plot_series *s, size_t i, nmlp_str *out) {
    char x[NMLP_NUMBER_MAX], y[NMLP_NUMBER_MAX];
    nmlp_plot_x_text(p, s, i, x);
    nmlp_plot_number(y, s->y[i]);
    nmlp_str_puts(out, "<tr><td>");
    nmlp_markup_text(out, s->name);
    nmlp_str_puts(out, "</td><td>");
    nmlp_markup_text(out, x);
    nmlp_str_printf(out, "</td><td>%s</td></tr>\n", y);
}

void nmlp_plot_table(const nmlp_plot *p, nmlp_str *out) {
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
