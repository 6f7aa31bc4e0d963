/* One chart of a page as an inline SVG with a legend before it and its numbers in a table behind it.
 *
 * Colours come from the page's style sheet by class, so that a chart follows light and dark; every mark says its value
 * when pointed at. */
#ifndef NMLP_REPORT_PLOT_H
#define NMLP_REPORT_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"
#include "report/scale.h"

typedef enum nmlp_mark {
    NMLP_MARK_LINE,  /* with its points */
    NMLP_MARK_CURVE, /* a line alone */
    NMLP_MARK_POINTS,
    NMLP_MARK_BARS, /* on a category axis, side by side with the other bars */
    NMLP_MARK_LIMIT /* a dashed line: what cannot be passed */
} nmlp_mark;

/* Colours with a meaning that is the same in every chart of a page; others follow. */
typedef enum nmlp_colour {
    NMLP_COLOUR_OURS,
    NMLP_COLOUR_PAPER,
    NMLP_COLOUR_DENSE,
    NMLP_COLOUR_SEQUENTIAL,
    NMLP_COLOUR_NAIVE,
    NMLP_COLOUR_OTHER,
    NMLP_COLOUR_ANOTHER,
    NMLP_N_COLOURS
} nmlp_colour;

typedef struct nmlp_plot_series {
    const char *name;
    nmlp_mark mark;
    nmlp_colour colour;
    bool by_depth; /* coloured by `depth` instead, from 0 (first layer) to 1 (last) */
    double depth;
    const double *x;          /* NULL: 0, 1, 2, ... */
    const double *y;          /* points that are not finite are left out */
    const double *low, *high; /* spread around y, or NULL */
    const bool *hollow;       /* bars that are not what the others are (say, dense), or NULL */
    const char *const *tips;  /* what a mark says, or NULL: series, x and y */
    size_t n;
    bool in_legend;
} nmlp_plot_series;

typedef struct nmlp_plot_axis {
    const char *label; /* with its unit */
    nmlp_scale_kind kind;
    bool from_zero;
    const char *const *categories; /* NULL: numbers */
    const double *ticks;           /* where ticks are, or NULL: where they are round */
    size_t n;                      /* of categories or ticks */
} nmlp_plot_axis;

typedef struct nmlp_plot {
    const char *title;
    const char *about; /* what the chart shows, in words, for those who do not see it */
    nmlp_plot_axis x, y;
    const nmlp_plot_series *series;
    size_t n_series;
} nmlp_plot;

enum { NMLP_PLOT_WIDTH = 560, NMLP_PLOT_HEIGHT = 320 };

void nmlp_plot_write(const nmlp_plot *plot, nmlp_str *out);

#endif
