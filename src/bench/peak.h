/* What this machine can do at best, one probe after the other. */
#ifndef NMLP_BENCH_PEAK_H
#define NMLP_BENCH_PEAK_H

#include "base/pool.h"
#include "bench/samples.h"

typedef struct nmlp_bench_peak_result {
    const char *name;
    const char *unit;
    nmlp_spread rate; /* of all threads together; 0: this CPU lacks it */
} nmlp_bench_peak_result;

enum { NMLP_BENCH_PEAKS = 8 };

nmlp_status nmlp_bench_peak_run(nmlp_bench_peak_result results[NMLP_BENCH_PEAKS], nmlp_pool *pool, nmlp_err *err);

#endif
