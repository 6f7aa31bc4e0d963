/* Shared by the files that draw a chart. */
#ifndef NMLP_REPORT_PLOT_INTERNAL_H
#define NMLP_REPORT_PLOT_INTERNAL_H

#include "report/plot.h"

enum { NMLP_NUMBER_MAX = 48 };

void nmlp_plot_number(char text[NMLP_NUMBER_MAX], double value);
/* An attribute that gives an element the colour of the series. */
void nmlp_plot_colour(const nmlp_plot_series *series, nmlp_str *out);
/* The x value or category of a point. */
void nmlp_plot_x_text(const nmlp_plot *plot, const nmlp_plot_series *series, size_t i, char text[NMLP_NUMBER_MAX]);
void nmlp_plot_legend(const nmlp_plot *plot, nmlp_str *out);
/* The numbers, folded away. */
void nmlp_plot_table(const nmlp_plot *plot, nmlp_str *out);

#endif
