/* A build without MPI: one process, and a clear word to those who start several. */
#include "cluster/cluster.h"

nmlp_status nmlp_cluster_join(nmlp_cluster **out, double timeout_s, nmlp_err *err) {
    *out = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_cluster_check_timeout(timeout_s, err));
    int size = nmlp_cluster_launched().size;
    if (size == 1) return NMLP_OK;
    nmlp_fail(err, NMLP_E_UNSUPPORTED, "%d processes were started, but this program was built without MPI", size);
    nmlp_fail_hint(err, "install libopenmpi-dev (or libmpich-dev) and build again");
    return NMLP_E_UNSUPPORTED;
}

void nmlp_cluster_emulate(nmlp_cluster *cluster, double latency_us, double gbit) {
    (void)cluster, (void)latency_us, (void)gbit;
}

nmlp_status nmlp_cluster_time_messages(nmlp_cluster *cluster, nmlp_cluster_timing *timing, int64_t bytes,
                                       nmlp_err *err) {
    (void)cluster;
    *timing = (nmlp_cluster_timing){.bytes = bytes};
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "this program was built without MPI");
}

void nmlp_cluster_end_on_loss(nmlp_cluster *cluster, nmlp_cluster_on_lost *on_lost) { (void)cluster, (void)on_lost; }

const nmlp_process_group *nmlp_cluster_group(const nmlp_cluster *cluster) {
    (void)cluster;
    return NULL;
}

void nmlp_cluster_leave(nmlp_cluster *cluster, bool failed) { (void)cluster, (void)failed; }

const char *nmlp_cluster_library(void) { return "none"; }
