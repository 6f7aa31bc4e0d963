/* A fixed set of threads that run one job at a time.
 *
 * The caller takes part as thread 0, so a pool of one thread starts none. Jobs must not start jobs. Splitting work over
 * outputs, never over a sum, keeps results independent of the number of threads. One owner at a time. */
#ifndef NMLP_BASE_POOL_H
#define NMLP_BASE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/barrier.h"
#include "base/status.h"

typedef struct nmlp_pool nmlp_pool;

typedef void nmlp_pool_job(void *ctx, int thread, int n_threads);
typedef void nmlp_pool_range(void *ctx, int64_t begin, int64_t end, int thread);

/* n_threads <= 0: one per CPU this process may use (cpus.h). */
nmlp_status nmlp_pool_create(nmlp_pool **out, int n_threads, nmlp_err *err);
void nmlp_pool_destroy(nmlp_pool *pool);
int nmlp_pool_threads(const nmlp_pool *pool); /* 1 for NULL */

/* How many threads finish work soonest that takes one thread `serial_ns`: every thread more has to be started and
 * waited for. 1 for NULL. */
int nmlp_pool_width(const nmlp_pool *pool, double serial_ns);

/* Runs job(ctx, t, n) on all n threads and waits. A NULL pool runs it on the caller alone. */
void nmlp_pool_run(nmlp_pool *pool, nmlp_pool_job *job, void *ctx);
/* The same on the first n of them, at least one; the others are left alone. */
void nmlp_pool_run_on(nmlp_pool *pool, int n, nmlp_pool_job *job, void *ctx);

/* A part of the memory that a coming job reads: units divided evenly between its threads. */
typedef struct nmlp_pool_ahead_part {
    const char *memory;
    size_t unit_bytes;
    int64_t n_units;
} nmlp_pool_ahead_part;

enum { NMLP_POOL_AHEAD_PARTS = 5 };
typedef struct nmlp_pool_ahead {
    nmlp_pool_ahead_part parts[NMLP_POOL_AHEAD_PARTS];
    int n_parts;         /* read side by side */
    int n_then;          /* parts behind those, side by side too, but after them */
    size_t thread_bytes; /* the most that one thread brings near */
} nmlp_pool_ahead;

/* Appends what `later` begins with. */
void nmlp_pool_ahead_then(nmlp_pool_ahead *ahead, const nmlp_pool_ahead *later);

/* From the next job on: what a thread that has ended its part of a job prefetches while it waits for another one, so
 * that memory does not wait too. NULL: nothing. Memory that is gone by then does no harm. */
void nmlp_pool_set_ahead(nmlp_pool *pool, const nmlp_pool_ahead *ahead);

/* Runs fn over [0,n) in pieces of `grain`, handed out as threads get free, on no more threads than there are pieces. */
void nmlp_pool_for(nmlp_pool *pool, int64_t n, int64_t grain, nmlp_pool_range *fn, void *ctx);

/* Inside a job, with what the job was given: waits until all its threads have arrived. */
void nmlp_pool_barrier(nmlp_pool *pool, int thread, int n_threads);

/* The node of memory that the thread stays on; threads are divided evenly between nodes, the first ones to the first.
 * 0 for all on a machine with one node, or with more threads than CPUs, which are not kept anywhere. The caller, thread
 * 0, is not kept anywhere either. */
int nmlp_pool_node(const nmlp_pool *pool, int thread);

/* For barriers of the pool's threads: how long they look before they sleep. Adapts to who else uses the CPUs. */
const atomic_uint *nmlp_pool_spin_ns(const nmlp_pool *pool);

#endif
