/* Where some threads wait for each other.
 *
 * Threads arrive in groups of a few, each with a counter in a cache line of its own, and the last of a group arrives at
 * the common counter: with 16 threads no line is written by more than four. */
#ifndef NMLP_BASE_BARRIER_H
#define NMLP_BASE_BARRIER_H

#include "base/waiting.h"

enum { NMLP_BARRIER_GROUPS = 16 };

typedef struct nmlp_barrier_count {
    _Alignas(NMLP_LINE_ALIGN) atomic_int n;
} nmlp_barrier_count;

/* Zeroed before its first use, but for spin_ns. */
typedef struct nmlp_barrier {
    _Alignas(NMLP_LINE_ALIGN) atomic_uint generation; /* counts passages */
    atomic_uint n_asleep;
    const atomic_uint *spin_ns; /* for how long to look before sleeping: nmlp_pool_spin_ns */
    nmlp_barrier_count groups[NMLP_BARRIER_GROUPS];
    nmlp_barrier_count root; /* groups that are complete */
} nmlp_barrier;

/* Thread `thread` of n_threads, all of which give the same number: returns when all have arrived. */
void nmlp_barrier_wait(nmlp_barrier *barrier, int thread, int n_threads);
/* The same in steps, for threads that have something to do meanwhile: arrive once, ask and await with what it returned.
 */
unsigned nmlp_barrier_arrive(nmlp_barrier *barrier, int thread, int n_threads);
bool nmlp_barrier_passed(const nmlp_barrier *barrier, unsigned arrival);
void nmlp_barrier_await(nmlp_barrier *barrier, unsigned arrival);

#endif
