#define _GNU_SOURCE /* clock_gettime, nanosleep */
#include "bench/samples.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

void nmlp_samples_add(nmlp_samples *samples, double x) {
    if (samples->n < NMLP_SAMPLES_MAX) samples->x[samples->n++] = x;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double nmlp_samples_quantile(const nmlp_samples *samples, double q) {
    double sorted[NMLP_SAMPLES_MAX];
    if (samples->n == 0) return 0.0;
    memcpy(sorted, samples->x, (size_t)samples->n * sizeof *sorted);
    qsort(sorted, (size_t)samples->n, sizeof *sorted, compare);
    return sorted[(int)(q * (samples->n - 1) + 0.5)];
}

nmlp_spread nmlp_samples_spread(const nmlp_samples *samples) {
    return (nmlp_spread){.median = nmlp_samples_quantile(samples, 0.5),
                         .p10 = nmlp_samples_quantile(samples, 0.1),
                         .p90 = nmlp_samples_quantile(samples, 0.9)};
}

double nmlp_bench_seconds(int n_threads) {
    struct timespec now;
    if (n_threads != 1 || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) != 0) return nmlp_clock_seconds();
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void nmlp_bench_settle(void) {
    struct timespec pause = {.tv_nsec = 2000000};
    nanosleep(&pause, NULL);
}
