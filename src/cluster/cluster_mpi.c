/* Collectives by MPI's non-blocking calls, so that waiting can end: a peer that is stuck must not hold the job. Between
 * processes of one machine also through memory that they share, for messages of sizes at which that was measured to be
 * faster. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/ints.h"
#include "base/mem.h"
#include "cluster/cluster.h"
#include "cluster/shared_window.h"

enum {
    BROADCAST_CHUNK = 1 << 28,
    FLAT_BROADCAST = 1 << 12,
    SPIN_US = 200,
    PAUSE_US_MIN = 20,
    PAUSE_US_MAX = 1000,
    PAUSES = 64,
    SHARED_SIZES = 4,
    TIMING_ROUNDS = 3,
    TIMING_GATHERS = 5
};

/* The path of a message is that which was faster at the first of these sizes that it does not exceed. */
static const int64_t shared_sizes[SHARED_SIZES] = {1 << 10, 1 << 14, 1 << 18, 1 << 20};

struct nmlp_cluster {
    nmlp_process_group group;
    double timeout_s;
    double latency_us, gbit;                                  /* of a network that is emulated; 0: none */
    nmlp_cluster_on_lost *on_lost;                            /* NULL: failures are the caller's */
    int *counts, *starts, *received_counts, *received_starts; /* [size] of one call, in bytes */
    nmlp_shared_window *shared;                               /* NULL: there is none */
    bool prefers_shared[SHARED_SIZES];
    int64_t *first; /* [size+1] of a broadcast as a gather */
};

static nmlp_status check(int code, const char *what, nmlp_err *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    if (code == MPI_SUCCESS) return NMLP_OK;
    MPI_Error_string(code, text, &len);
    return nmlp_fail(err, NMLP_E_IO, "MPI %s failed: %s", what, text);
}

static nmlp_status fail_late(const nmlp_cluster *c, double timeout_s, const char *what, nmlp_err *err) {
    nmlp_fail(err, NMLP_E_IO, "process %d of %d waited %.0f s for the others (%s): one of them is stuck or gone",
              c->group.rank, c->group.size, timeout_s, what);
    nmlp_fail_hint(err, "look at their messages; raise `peer_timeout` where they are only slow");
    return NMLP_E_IO;
}

/* Polls without pause first: a collective inside a node takes microseconds. Then it leaves the core to others, for a
 * part of what it has waited: the longer a wait, the less a late look costs and the more a core that is kept busy. */
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
            double pause_s = fmin(fmax(waited / PAUSES, 1e-6 * PAUSE_US_MIN), 1e-6 * PAUSE_US_MAX);
            (void)nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * pause_s)}, NULL);
        }
    }
    return fail_late(c, timeout_s, what, err);
}

/* Of a wait that ended so. */
static nmlp_status end_wait(const nmlp_cluster *c, nmlp_status st, const nmlp_err *err) {
    if (st == NMLP_OK || !c->on_lost) return st;
    c->on_lost(err);
    (void)MPI_Abort(MPI_COMM_WORLD, 1);
    return st;
}

static nmlp_status wait_up_to(const nmlp_cluster *c, MPI_Request *request, double timeout_s, const char *what,
                              nmlp_err *err) {
    nmlp_err own = {0};
    if (!err) err = &own;
    return end_wait(c, poll(c, request, timeout_s, what, err), err);
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
    double end = nmlp_clock_seconds() + 1e-6 * c->latency_us;
    if (c->gbit > 0) end += (double)bytes * 8e-9 / c->gbit;
    if (!(c->latency_us > 0) && !(c->gbit > 0)) return;
    for (double left = end - nmlp_clock_seconds(); left > 0; left = end - nmlp_clock_seconds())
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)left, .tv_nsec = (long)(1e9 * fmod(left, 1))}, NULL);
}

static bool takes_shared(const nmlp_cluster *c, int64_t bytes) {
    for (int i = 0; i < SHARED_SIZES; i++)
        if (bytes <= shared_sizes[i]) return c->prefers_shared[i];
    return false;
}

static nmlp_status gather_shared(nmlp_cluster *c, void *data, const int64_t *first, double timeout_s, const char *what,
                                 nmlp_err *err) {
    nmlp_err own = {0};
    if (!err) err = &own;
    if (nmlp_shared_gather_run(nmlp_shared_window_gather(c->shared), data, first, timeout_s)) return NMLP_OK;
    return end_wait(c, fail_late(c, timeout_s, what, err), err);
}

static nmlp_status gather_by_library(nmlp_cluster *c, void *data, const int64_t *first, double timeout_s,
                                     const char *what, nmlp_err *err) {
    MPI_Request request;
    NMLP_RETURN_IF_FAILED(lay_out(c, first, false, err));
    NMLP_RETURN_IF_FAILED(check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, c->counts, c->starts,
                                                MPI_BYTE, MPI_COMM_WORLD, &request),
                                what, err));
    return wait_up_to(c, &request, timeout_s, what, err);
}

static nmlp_status gather(void *ctx, void *data, const int64_t *first, nmlp_err *err) {
    nmlp_cluster *c = ctx;
    int64_t bytes = first[c->group.size], own = first[c->group.rank + 1] - first[c->group.rank];
    NMLP_RETURN_IF_FAILED(takes_shared(c, bytes) ? gather_shared(c, data, first, c->timeout_s, "gather", err)
                                                 : gather_by_library(c, data, first, c->timeout_s, "gather", err));
    emulate(c, bytes - own);
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

/* From the first process, in one message: few bytes to all at the same time, many along a tree of the library's. */
static nmlp_status broadcast_once(nmlp_cluster *c, void *data, int64_t bytes, double timeout_s, nmlp_err *err) {
    MPI_Request request;
    for (int k = 1; k <= c->group.size; k++) c->first[k] = bytes;
    if (takes_shared(c, bytes)) {
        NMLP_RETURN_IF_FAILED(gather_shared(c, data, c->first, timeout_s, "broadcast", err));
    } else if (bytes <= FLAT_BROADCAST) {
        NMLP_RETURN_IF_FAILED(gather_by_library(c, data, c->first, timeout_s, "broadcast", err));
    } else {
        NMLP_RETURN_IF_FAILED(
            check(MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD, &request), "broadcast", err));
        NMLP_RETURN_IF_FAILED(wait_up_to(c, &request, timeout_s, "broadcast", err));
    }
    emulate(c, bytes);
    return NMLP_OK;
}

static nmlp_status broadcast(void *ctx, void *data, int64_t bytes, nmlp_err *err) {
    nmlp_cluster *c = ctx;
    for (int64_t at = 0; at < bytes; at += BROADCAST_CHUNK)
        NMLP_RETURN_IF_FAILED(
            broadcast_once(c, (char *)data + at, nmlp_min(BROADCAST_CHUNK, bytes - at), c->timeout_s, err));
    return NMLP_OK;
}

static nmlp_status await(void *ctx, void *data, int64_t bytes, nmlp_err *err) {
    if (bytes > BROADCAST_CHUNK) return nmlp_fail(err, NMLP_E_LIMIT, "a message of %lld bytes", (long long)bytes);
    return broadcast_once(ctx, data, bytes, INFINITY, err);
}

/* ---- which path is faster ---- */

/* Of one gather, when several follow each other: a process that always comes last would see no wait in one alone. The
 * best of some rounds. */
static nmlp_status time_gathers(nmlp_cluster *c, char *data, const int64_t *first, bool shared, double *best_us,
                                nmlp_err *err) {
    *best_us = INFINITY;
    for (int round = 0; round < TIMING_ROUNDS; round++) {
        double begin = nmlp_clock_seconds();
        for (int i = 0; i < TIMING_GATHERS; i++)
            NMLP_RETURN_IF_FAILED(shared ? gather_shared(c, data, first, c->timeout_s, "gather", err)
                                         : gather_by_library(c, data, first, c->timeout_s, "gather", err));
        *best_us = fmin(*best_us, 1e6 * (nmlp_clock_seconds() - begin) / TIMING_GATHERS);
    }
    return NMLP_OK;
}

/* Each process puts other bytes in; what comes out is the same on both paths. */
static nmlp_status time_paths(nmlp_cluster *c, nmlp_cluster_timing *t, char *data, int64_t *first, nmlp_err *err) {
    int size = c->group.size, rank = c->group.rank;
    char *own = data + t->bytes; /* of the second path */
    for (int k = 0; k <= size; k++) first[k] = t->bytes / size * k;
    for (int64_t i = first[rank]; i < first[rank + 1]; i++) data[i] = own[i] = (char)(i * 7 + 31 * rank);
    NMLP_RETURN_IF_FAILED(time_gathers(c, data, first, false, &t->library_us, err));
    if (!c->shared) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(time_gathers(c, own, first, true, &t->shared_us, err));
    t->same = memcmp(data, own, (size_t)first[size]) == 0;
    return NMLP_OK;
}

nmlp_status nmlp_cluster_time_messages(nmlp_cluster *c, nmlp_cluster_timing *t, int64_t bytes, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *t = (nmlp_cluster_timing){.bytes = nmlp_min(bytes, shared_sizes[SHARED_SIZES - 1]), .same = true};
    char *data = nmlp_mem_new(2 * (size_t)t->bytes, 1, err);
    int64_t *first = nmlp_mem_new((size_t)c->group.size + 1, sizeof *first, err);
    if (!data || !first) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(time_paths(c, t, data, first, err));
    t->shared = takes_shared(c, t->bytes);
out:
    nmlp_mem_free(data);
    nmlp_mem_free(first);
    return st;
}

/* By the times of the first process. */
static nmlp_status choose_paths(nmlp_cluster *c, nmlp_err *err) {
    if (!c->shared) return NMLP_OK;
    bool faster[SHARED_SIZES];
    for (int i = 0; i < SHARED_SIZES; i++) {
        nmlp_cluster_timing t;
        NMLP_RETURN_IF_FAILED(nmlp_cluster_time_messages(c, &t, shared_sizes[i], err));
        faster[i] = t.same && t.shared_us < t.library_us;
    }
    NMLP_RETURN_IF_FAILED(broadcast(c, faster, sizeof faster, err)); /* by the library: nothing is preferred yet */
    memcpy(c->prefers_shared, faster, sizeof faster);
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

static void destroy(nmlp_cluster *c) {
    nmlp_mem_free(c->counts);
    nmlp_mem_free(c->first);
    nmlp_mem_free(c);
}

nmlp_status nmlp_cluster_join(nmlp_cluster **out, double timeout_s, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_cluster_check_timeout(timeout_s, err));
    if (nmlp_cluster_launched().size == 1) return NMLP_OK;
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
    c->first = nmlp_mem_new((size_t)c->group.size + 1, sizeof *c->first, err);
    if (!c->first) NMLP_TRY(NMLP_E_NOMEM);
    c->shared = nmlp_shared_window_open(shared_sizes[SHARED_SIZES - 1]);
    NMLP_TRY(choose_paths(c, err));
    *out = c;
out:
    if (st != NMLP_OK) destroy(c);
    return st;
}

const nmlp_process_group *nmlp_cluster_group(const nmlp_cluster *cluster) { return cluster ? &cluster->group : NULL; }

void nmlp_cluster_leave(nmlp_cluster *cluster, bool failed) {
    if (!cluster) return;
    if (failed) (void)MPI_Abort(MPI_COMM_WORLD, 1);
    nmlp_shared_window_close(cluster->shared);
    destroy(cluster);
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
