/* Medians and spreads of a few samples. */
#ifndef NMLP_BENCH_SAMPLES_H
#define NMLP_BENCH_SAMPLES_H

enum { NMLP_SAMPLES_MAX = 512 };

typedef struct nmlp_samples {
    double x[NMLP_SAMPLES_MAX];
    int n;
} nmlp_samples;

typedef struct nmlp_spread {
    double median;
    double p10;
    double p90;
} nmlp_spread;

/* More than NMLP_SAMPLES_MAX are passed over. */
void nmlp_samples_add(nmlp_samples *samples, double x);
/* q = 0 smallest, 0.5 median, 1 largest; 0 without samples. */
double nmlp_samples_quantile(const nmlp_samples *samples, double q);
nmlp_spread nmlp_samples_spread(const nmlp_samples *samples);

#endif
