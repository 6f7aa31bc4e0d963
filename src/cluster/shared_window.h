/* Memory of an MPI window that all processes share, where they are on one machine. */
#ifndef NMLP_CLUSTER_SHARED_WINDOW_H
#define NMLP_CLUSTER_SHARED_WINDOW_H

#include "base/shared_gather.h"

typedef struct nmlp_shared_window nmlp_shared_window;

/* Collective. NULL where the processes are on several machines, or where MPI gives no such memory. */
nmlp_shared_window *nmlp_shared_window_open(int64_t area_bytes);
nmlp_shared_gather *nmlp_shared_window_gather(nmlp_shared_window *window);
/* Collective; NULL is fine. */
void nmlp_shared_window_close(nmlp_shared_window *window);

#endif
