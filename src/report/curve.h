/* Line charts as SVG text: one panel for each curve, one above the other, over a common axis. */
#ifndef NMLP_REPORT_CURVE_H
#define NMLP_REPORT_CURVE_H

#include <stdint.h>

#include "base/str.h"

typedef struct nmlp_curve {
    const char *title;
    const double *x; /* ascending */
    const double *y; /* points that are not finite are left out */
    int64_t n;
} nmlp_curve;

/* Appends an SVG document of its own. */
void nmlp_curve_svg(nmlp_str *out, const char *x_title, const nmlp_curve *curves, int n_curves);

#endif
