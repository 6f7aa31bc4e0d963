#include <stdlib.h>

#include "cluster/cluster.h"

/* What launchers set: Open MPI's mpirun, MPICH's and Intel's hydra, Slurm's srun with PMIx or PMI2. */
static const struct launcher {
    const char *rank, *size;
} launchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                 {"PMI_RANK", "PMI_SIZE"},
                 {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

static int number(const char *name) {
    const char *text = getenv(name);
    long value = text ? strtol(text, NULL, 10) : 0;
    return value > 0 && value < 1 << 24 ? (int)value : 0;
}

nmlp_cluster_place nmlp_cluster_launched(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        int size = number(launchers[i].size), rank = number(launchers[i].rank);
        if (size > 1 && rank < size) return (nmlp_cluster_place){.rank = rank, .size = size};
    }
    return (nmlp_cluster_place){.size = 1};
}

nmlp_status nmlp_cluster_check_timeout(double timeout_s, nmlp_err *err) {
    if (timeout_s > 0) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "peer_timeout", "is %g; it must be above 0 seconds", timeout_s);
}
