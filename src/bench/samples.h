/* Times taken, and medians and spreads of a few samples. */
#ifndef NMLP_BENCH_SAMPLES_H
#define NMLP_BENCH_SAMPLES_H

/* With one thread the processor time of the process, which other programs on the machine lengthen less; with more the
 * wall clock. */
double nmlp_bench_seconds(int n_threads);
/* Long enough for the spinning threads of whoever ran before to fall asleep. */
void nmlp_bench_settle(void);

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
