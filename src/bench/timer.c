#define _GNU_SOURCE /* clock_gettime, nanosleep */
#include "bench/timer.h"

#include <time.h>

#include "base/clock.h"

double nmlp_bench_seconds(int n_threads) {
    struct timespec now;
    if (n_threads != 1 || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) != 0) return nmlp_clock_seconds();
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void nmlp_bench_settle(void) {
    struct timespec pause = {.tv_nsec = 2000000};
    nanosleep(&pause, NULL);
}
