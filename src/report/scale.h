/* Axes: a range around values with round ends, where its ticks are, and where a value stands on it. */
#ifndef NMLP_REPORT_SCALE_H
#define NMLP_REPORT_SCALE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum nmlp_scale_kind {
    NMLP_SCALE_LINEAR,
    NMLP_SCALE_DECADES, /* logarithmic, ends are powers of ten */
    NMLP_SCALE_LOG      /* logarithmic, ends are 1, 2 or 5 times a power of ten */
} nmlp_scale_kind;

enum { NMLP_SCALE_TICKS_MAX = 64 };

typedef struct nmlp_scale {
    nmlp_scale_kind kind;
    double low, high;
    double step; /* linear only */
} nmlp_scale;

/* Around the finite values (logarithmic: the positive ones) of a list that may be empty; `n_ticks` is about how many
 * are wanted. */
nmlp_scale nmlp_scale_around(nmlp_scale_kind kind, const double *values, size_t n, int n_ticks);
/* 0 at the low end, 1 at the high end. */
double nmlp_scale_place(const nmlp_scale *scale, double value);
/* Ascending; returns how many. */
int nmlp_scale_ticks(const nmlp_scale *scale, double ticks[NMLP_SCALE_TICKS_MAX]);

#endif
