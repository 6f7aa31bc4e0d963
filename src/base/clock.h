/* Wall-clock time from a monotonic clock. */
#ifndef NMLP_BASE_CLOCK_H
#define NMLP_BASE_CLOCK_H

double nmlp_clock_seconds(void);

#endif
