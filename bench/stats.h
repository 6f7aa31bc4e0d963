/* Medians and spreads of a few samples. */
#ifndef NMLP_BENCH_STATS_H
#define NMLP_BENCH_STATS_H

#include <stdlib.h>
#include <string.h>

enum { NMLP_SAMPLES_MAX = 512 };

typedef struct nmlp_samples {
    double x[NMLP_SAMPLES_MAX];
    int n;
} nmlp_samples;

static inline void nmlp_samples_add(nmlp_samples *samples, double x) {
    if (samples->n < NMLP_SAMPLES_MAX) samples->x[samples->n++] = x;
}

static inline int nmlp_compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* q = 0 smallest, 0.5 median, 1 largest; 0 without samples. */
static inline double nmlp_samples_quantile(const nmlp_samples *samples, double q) {
    double sorted[NMLP_SAMPLES_MAX];
    if (samples->n == 0) return 0.0;
    memcpy(sorted, samples->x, (size_t)samples->n * sizeof *sorted);
    qsort(sorted, (size_t)samples->n, sizeof *sorted, nmlp_compare_doubles);
    return sorted[(int)(q * (samples->n - 1) + 0.5)];
}

#endif
