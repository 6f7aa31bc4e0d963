/* Cache sizes of one core, for the choice of block sizes. */
#ifndef NMLP_KERNELS_CACHES_H
#define NMLP_KERNELS_CACHES_H

#include <stddef.h>

typedef struct nmlp_caches {
    size_t l1_bytes; /* data */
    size_t l2_bytes;
    size_t l3_bytes; /* shared between cores */
} nmlp_caches;

/* Of the machine, read once; what cannot be learned is taken as 32 KiB, 1 MiB and 16 MiB. */
const nmlp_caches *nmlp_caches_get(void);

#endif
