/* How many CPUs this process may use. */
#ifndef NMLP_BASE_CPUS_H
#define NMLP_BASE_CPUS_H

/* The CPUs of its affinity mask, or fewer where a control group gives it less time than that; at least 1. */
int nmlp_cpus_usable(void);

/* CPUs' worth of time in the text of a cpu.max file ("QUOTA PERIOD", in microseconds), rounded up; 0: no limit, or not
 * such a text. */
int nmlp_cpus_of_quota(const char *text);

#endif
