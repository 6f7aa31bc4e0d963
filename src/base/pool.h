/* A fixed set of threads that run one job at a time.
 *
 * The caller takes part as thread 0, so a pool of one thread starts none. Jobs must not start jobs. Splitting work over
 * outputs, never over a sum, keeps results independent of the number of threads. One owner at a time. */
#ifndef NMLP_BASE_POOL_H
#define NMLP_BASE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_pool nmlp_pool;

/* Where some threads wait for each other; zeroed before its first use. */
typedef struct nmlp_barrier {
    atomic_int n_arrived;
    atomic_uint generation;
} nmlp_barrier;

/* Returns when n_threads have arrived. */
void nmlp_barrier_wait(nmlp_barrier *barrier, int n_threads);
/* The same in steps, for threads that have something to do meanwhile: arrive once, ask and await with what it returned.
 */
unsigned nmlp_barrier_arrive(nmlp_barrier *barrier, int n_threads);
bool nmlp_barrier_passed(const nmlp_barrier *barrier, unsigned arrival);
void nmlp_barrier_await(const nmlp_barrier *barrier, unsigned arrival);

typedef void nmlp_pool_job(void *ctx, int thread, int n_threads);
typedef void nmlp_pool_range(void *ctx, int64_t begin, int64_t end, int thread);

/* n_threads <= 0: one per CPU this process may use. */
nmlp_status nmlp_pool_create(nmlp_pool **out, int n_threads, nmlp_err *err);
void nmlp_pool_destroy(nmlp_pool *pool);
int nmlp_pool_threads(const nmlp_pool *pool); /* 1 for NULL */

/* Runs job(ctx, t, n) on all n threads and waits. A NULL pool runs it on the caller alone. */
void nmlp_pool_run(nmlp_pool *pool, nmlp_pool_job *job, void *ctx);

/* Runs fn over [0,n) in pieces of `grain`, handed out as threads get free. */
void nmlp_pool_for(nmlp_pool *pool, int64_t n, int64_t grain, nmlp_pool_range *fn, void *ctx);

/* Inside a job: waits until all threads of the pool arrived. */
void nmlp_pool_barrier(nmlp_pool *pool);

#endif
