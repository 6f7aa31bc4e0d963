/* The processes that mpirun or srun started for one command, as a process group over MPI: its only user.
 *
 * A peer that does not answer within the time limit ends the job with a message, as one that died does. */
#ifndef NMLP_CLUSTER_CLUSTER_H
#define NMLP_CLUSTER_CLUSTER_H

#include "base/process_group.h"
#include "base/status.h"

enum { NMLP_CLUSTER_TIMEOUT_S = 600 };

typedef struct nmlp_cluster nmlp_cluster;

/* What the launcher says in the environment, before MPI is begun: 0 of 1 without one. */
typedef struct nmlp_cluster_place {
    int rank;
    int size;
} nmlp_cluster_place;

nmlp_cluster_place nmlp_cluster_launched(void);

/* Called once, before the job ends, where a collective failed. */
typedef void nmlp_cluster_on_lost(const nmlp_err *err);

/* Of nmlp_cluster_join: above 0, whether there are others to wait for or not. */
nmlp_status nmlp_cluster_check_timeout(double timeout_s, nmlp_err *err);
/* Begins MPI where a launcher started several processes; else *group is NULL. Once per process. */
nmlp_status nmlp_cluster_join(nmlp_cluster **out, double timeout_s, nmlp_err *err);
/* From now on every collective takes as much longer as a network would make it: `latency_us`, since all send at the
 * same time, and what a process receives at `gbit` (0: no limit). For measurements where the processes are on one
 * machine. */
void nmlp_cluster_emulate(nmlp_cluster *cluster, double latency_us, double gbit);
/* How long a gather of so many bytes in all takes, by MPI and through memory that the processes share, where they are
 * on one machine. Which of the two is faster was measured at the beginning for messages of several sizes. */
typedef struct nmlp_cluster_timing {
    int64_t bytes;
    double library_us, shared_us; /* 0: there is no shared memory */
    bool shared;                  /* messages of this size go that way */
    bool same;                    /* both have given the same bytes */
} nmlp_cluster_timing;

/* Collective; of up to 1 MB. */
nmlp_status nmlp_cluster_time_messages(nmlp_cluster *cluster, nmlp_cluster_timing *timing, int64_t bytes,
                                       nmlp_err *err);
/* From now on a collective that fails ends the job there and then: for servers, which would go on. */
void nmlp_cluster_end_on_loss(nmlp_cluster *cluster, nmlp_cluster_on_lost *on_lost);
/* NULL: this process is alone. */
const nmlp_process_group *nmlp_cluster_group(const nmlp_cluster *cluster);
/* Ends MPI; `failed` ends the other processes too, whatever they do. */
void nmlp_cluster_leave(nmlp_cluster *cluster, bool failed);

/* "Open MPI", "MPICH 4.0.2"; "none" in a build without it. */
const char *nmlp_cluster_library(void);

#endif
