/* Grouped bars on a logarithmic axis or on one that begins at zero, as a self-contained SVG: one group per category,
 * one bar per series. */
#ifndef NMLP_REPORT_CHART_H
#define NMLP_REPORT_CHART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

typedef struct nmlp_chart {
    const char *title, *subtitle, *y_label;
    const char *const *categories;
    size_t n_categories;
    const char *const *series;
    size_t n_series;
    const double *values; /* [series][category]; 0 or less: no bar */
    bool from_zero;       /* a linear axis: lengths of bars are comparable */
} nmlp_chart;

enum { NMLP_CHART_WIDTH = 960, NMLP_CHART_HEIGHT = 420 };

/* Appends one chart as an <svg> element at (0, top); a file has one or more inside an outer <svg>. */
void nmlp_chart_write(const nmlp_chart *chart, int top, nmlp_str *out);
/* A whole file of charts, one below the other. */
void nmlp_chart_write_file(const nmlp_chart *charts, size_t n_charts, nmlp_str *out);

#endif
