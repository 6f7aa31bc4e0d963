/* Which CPUs this process may use, and which of them are near which memory. What the kernel does not say is taken as
 * one CPU, one node. */
#ifndef NMLP_BASE_CPUS_H
#define NMLP_BASE_CPUS_H

#include <stdbool.h>

/* The CPUs of its affinity mask, or fewer where a control group gives it less time than that; at least 1. */
int nmlp_cpus_usable(void);

/* CPUs' worth of time in the text of a cpu.max file ("QUOTA PERIOD", in microseconds), rounded up; 0: no limit, or not
 * such a text. */
int nmlp_cpus_of_quota(const char *text);

/* Nodes of memory with CPUs that this process may use; 1 where there is nothing to choose. */
int nmlp_cpus_nodes(void);
/* The calling thread runs only on the usable CPUs of that node, the number counted as above, from now on; so what it
 * touches first lies there. False: it stays where it is. */
bool nmlp_cpus_stay_on_node(int node);

/* Whether `cpu` is in a list such as "0-3,8". */
bool nmlp_cpus_list_has(const char *list, int cpu);

#endif
