/* Energy of the machine since some moment: packages and their memory as Linux counts them (RAPL, powercap), or a GPU's
 * own counter (NVML). Where neither may be read, as in most virtual machines, there is none. */
#ifndef NMLP_BENCH_ENERGY_H
#define NMLP_BENCH_ENERGY_H

#include <stdbool.h>
#include <stdint.h>

enum { NMLP_ENERGY_DOMAINS_MAX = 16, NMLP_ENERGY_PATH_MAX = 320 };

typedef struct nmlp_energy_domain {
    char path[NMLP_ENERGY_PATH_MAX]; /* of energy_uj */
    double range_uj;                 /* where it begins again */
    double last_uj;
} nmlp_energy_domain;

typedef struct nmlp_energy {
    nmlp_energy_domain domains[NMLP_ENERGY_DOMAINS_MAX];
    int n_domains;
    double joules; /* of the domains, since the meter was opened */
    void *library; /* NVML; NULL: none */
    void *device;
    int (*read_mj)(void *device, unsigned long long *mj);
} nmlp_energy;

/* Finds what can be read under `root` ("/sys/class/powercap"), or on GPU 0. A meter may find nothing. */
void nmlp_energy_open(nmlp_energy *meter, const char *root, bool gpu);
void nmlp_energy_close(nmlp_energy *meter);
/* Joules since an arbitrary beginning; NaN where nothing can be read. To be asked at least once a minute: counters of
 * small range begin again. */
double nmlp_energy_joules(nmlp_energy *meter);

#endif
