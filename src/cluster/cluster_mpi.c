/* Collectives by MPI's non-blocking calls, so that waiting can end: a peer that is stuck must not hold the job. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "base/ints.h"
#include "base/mem.h"
#include "cluster/cluster.h"

enum { BROADCAST_CHUNK = 1 << 28, SPIN_US = 200 };

struct nmlp_cluster {
    nmlp_process_group group;
    double timeout_s;
    double latency_us, gbit;                                  /* of a network that is emulated; 0: none */
    nmlp_cluster_on_lost *on_lost;                            /* NULL: failures are the caller's */
    int *counts, *starts, *received_counts, *received_starts; /* [size] of one call, in bytes */
};

static nmlp_status check(int code, const char *what, nmlp_err *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    if (code == MPI_SUCCESS) return NMLP_OK;
    MPI_Error_string(code, text, &len);
    return nmlp_fail(err, NMLP_E_IO, "MPI %s failed: %s", what, text);
}

/* Polls without pause first: a collective inside a node takes microseconds. Then it leaves the core to others. */
static nmlp_status poll(const nmlp_cluster *c, MPI_Request *request, double timeout_s, const char *what,
                        nmlp_err *err) {
    double begin = nmlp_clock_seconds();
    int done = 0;
    for (;;) {
        NMLP_RETURN_IF_FAILED(check(MPI_Test(request, &done, MPI_STATUS_IGNORE), what, err));
        if (done) return NMLP_OK;
        double waited = nmlp_clock_seconds() - begin;
        if (waited > timeout_s) break;
        if (waited < 1e-6 * SPIN_US) {
            sched_yield();
        } else {
            (void)nanosleep(&(struct timespec){.tv_nsec = waited < 0.1 ? 20000 : 1000000}, NULL);
        }
    }
    nmlp_fail(err, NMLP_E_IO, "process %d of %d waited %.0f s for the others (%s): one of them is stuck or gone",
              c->group.rank, c->group.size, timeout_s, what);
    nmlp_fail_hint(err, "look at their messages; raise `peer_timeout` where they are only slow");
    return NMLP_E_IO;
}

static nmlp_status wait_up_to(const nmlp_cluster *c, MPI_Request *request, double timeout_s, const char *what,
                              nmlp_err *err) {
    nmlp_err own = {0};
    if (!err) err = &own;
    nmlp_status st = poll(c, request, timeout_s, what, err);
    if (st == NMLP_OK || !c->on_lost) return st;
    c->on_lost(err);
    (void)MPI_Abort(MPI_COMM_WORLD, 1);
    return st;
}

static nmlp_status wait_for(const nmlp_cluster *c, MPI_Request *request, const char *what, nmlp_err *err) {
    return wait_up_to(c, request, c->timeout_s, what, err);
}

/* `exchanged`: as much as this process gives itself comes from every other too. */
static nmlp_status lay_out(nmlp_cluster *c, const int64_t *first, bool exchanged, nmlp_err *err) {
    int size = c->group.size, rank = c->group.rank;
    int64_t mine = first[rank + 1] - first[rank];
    if (first[size] > INT_MAX || (exchanged && mine * size > INT_MAX))
        return nmlp_fail(err, NMLP_E_LIMIT, "a message of %lld bytes is more than MPI takes at once",
                         (long long)nmlp_max(first[size], mine * size));
    for (int k = 0; k < size; k++) {
        c->counts[k] = (int)(first[k + 1] - first[k]);
        c->starts[k] = (int)first[k];
        if (!exchanged) continue;
        c->received_counts[k] = (int)mine;
        c->received_starts[k] = (int)(k * mine);
    }
    return NMLP_OK;
}

void nmlp_cluster_emulate(nmlp_cluster *cluster, double latency_us, double gbit) {
    if (!cluster) return;
    cluster->latency_us = latency_us;
    cluster->gbit = gbit;
}

/* Behind a collective, in which this process has received so many bytes. */
static void emulate(const nmlp_cluster *c, int64_t bytes) {
    double end = nmlp_clock_seconds() + 1e-6 * c->latency_us * ceil(log2((double)c->group.size));
    if (c->gbit > 0) end += (double)bytes * 8e-9 / c->gbit;
    if (!(c->latency_us > 0) && !(c->gbit > 0)) return;
    for (double left = end - nmlp_clock_seconds(); left > 0; left = end - nmlp_clock_seconds())
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)left, .tv_nsec = (long)(1e9 * fmod(left, 1))}, NULL);
}

static nmlp_status gather(void *ctx, void *data, const int64_t *first, nmlp_err *err) {
    nmlp_cluster *c = ctx;
    MPI_Request request;
    NMLP_RETURN_IF_FAILED(lay_out(c, first, false, err));
    NMLP_RETURN_IF_FAILED(check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, c->counts, c->starts,
                                                MPI_BYTE, MPI_COMM_WORLD, &request),
                                "gather", err));
    NMLP_RETURN_IF_FAILED(wait_for(c, &request, "gather", err));
    emulate(c, first[c->group.size] - c->counts[c->group.rank]);
    return NMLP_OK;
}

static nmlp_status exchange(void *ctx, void *received, const void *data, const int64_t *first, nmlp_err *err) {
    nmlp_cluster *c = ctx;
    MPI_Request request;
    NMLP_RETURN_IF_FAILED(lay_out(c, first, true, err));
    NMLP_RETURN_IF_FAILED(check(MPI_Ialltoallv(data, c->counts, c->starts, MPI_BYTE, received, c->received_counts,
                                               c->received_starts, MPI_BYTE, MPI_COMM_WORLD, &request),
                                "exchange", err));
    NMLP_RETURN_IF_FAILED(wait_for(c, &request, "exchange", err));
    emulate(c, (int64_t)c->counts[c->group.rank] * (c->group.size - 1));
    return NMLP_OK;
}

static nmlp_status broadcast(void *ctx, void *data, int64_t bytes, nmlp_err *err) {
    nmlp_cluster *c = ctx;
    MPI_Request request;
    for (int64_t at = 0; at < bytes; at += BROADCAST_CHUNK) {
        int some = (int)nmlp_min(BROADCAST_CHUNK, bytes - at);
        NMLP_RETURN_IF_FAILED(
            check(MPI_Ibcast((char *)data + at, some, MPI_BYTE, 0, MPI_COMM_WORLD, &request), "broadcast", err));
        NMLP_RETURN_IF_FAILED(wait_for(c, &request, "broadcast", err));
        emulate(c, some);
    }
    return NMLP_OK;
}

static nmlp_status await(void *ctx, void *data, int64_t bytes, nmlp_err *err) {
    MPI_Request request;
    if (bytes > BROADCAST_CHUNK) return nmlp_fail(err, NMLP_E_LIMIT, "a message of %lld bytes", (long long)bytes);
    NMLP_RETURN_IF_FAILED(check(MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD, &request), "broadcast", err));
    NMLP_RETURN_IF_FAILED(wait_up_to(ctx, &request, INFINITY, "broadcast", err));
    emulate(ctx, bytes);
    return NMLP_OK;
}

void nmlp_cluster_end_on_loss(nmlp_cluster *cluster, nmlp_cluster_on_lost *on_lost) {
    if (cluster) cluster->on_lost = on_lost;
}

/* Serialized: a server's steps are made by a thread of its own, one at a time. */
static nmlp_status begin_mpi(nmlp_err *err) {
    int provided;
    NMLP_RETURN_IF_FAILED(check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "initialisation", err));
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (provided >= MPI_THREAD_SERIALIZED) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "this MPI does not allow threads");
}

nmlp_status nmlp_cluster_join(nmlp_cluster **out, double timeout_s, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    if (nmlp_cluster_launched().size == 1) return NMLP_OK;
    if (!(timeout_s > 0))
        return nmlp_fail_field(err, NMLP_E_ARG, "peer_timeout", "is %g; it must be above 0 seconds", timeout_s);
    NMLP_RETURN_IF_FAILED(begin_mpi(err));
    nmlp_cluster *c = nmlp_mem_new(1, sizeof *c, err);
    if (!c) return NMLP_E_NOMEM;
    c->timeout_s = timeout_s;
    c->group =
        (nmlp_process_group){.gather = gather, .exchange = exchange, .broadcast = broadcast, .await = await, .ctx = c};
    NMLP_TRY(check(MPI_Comm_rank(MPI_COMM_WORLD, &c->group.rank), "rank", err));
    NMLP_TRY(check(MPI_Comm_size(MPI_COMM_WORLD, &c->group.size), "size", err));
    if (c->group.size != nmlp_cluster_launched().size) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "the launcher started %d processes, MPI sees %d",
                  nmlp_cluster_launched().size, c->group.size);
        nmlp_fail_hint(err, "the launcher must be that of %s", nmlp_cluster_library());
        NMLP_TRY(NMLP_E_UNSUPPORTED);
    }
    c->counts = nmlp_mem_new(4 * (size_t)c->group.size, sizeof *c->counts, err);
    if (!c->counts) NMLP_TRY(NMLP_E_NOMEM);
    c->starts = c->counts + c->group.size;
    c->received_counts = c->starts + c->group.size;
    c->received_starts = c->received_counts + c->group.size;
    *out = c;
out:
    if (st != NMLP_OK) nmlp_mem_free(c);
    return st;
}

const nmlp_process_group *nmlp_cluster_group(const nmlp_cluster *cluster) { return cluster ? &cluster->group : NULL; }

void nmlp_cluster_leave(nmlp_cluster *cluster, bool failed) {
    if (!cluster) return;
    if (failed) (void)MPI_Abort(MPI_COMM_WORLD, 1);
    nmlp_mem_free(cluster->counts);
    nmlp_mem_free(cluster);
    (void)MPI_Finalize();
}

const char *nmlp_cluster_library(void) {
#ifdef OMPI_MAJOR_VERSION
    return "Open MPI";
#elif defined MPICH_VERSION
    return "MPICH " MPICH_VERSION;
#else
    return "MPI";
#endif
}
