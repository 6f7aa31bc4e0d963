/* What the benchmarks measure time with: with one thread the processor time of the process, which other programs on the
 * machine stretch less; with more the wall clock. */
#ifndef NMLP_BENCH_TIMER_H
#define NMLP_BENCH_TIMER_H

double nmlp_bench_seconds(int n_threads);
/* Long enough for the spinning threads of whoever ran before to fall asleep. */
void nmlp_bench_settle(void);

#endif
