/* Sharing the tasks of consecutive steps between the threads of one job.
 *
 * Every thread has a range of its own and takes from it first, so that in repeated steps the same thread meets the same
 * data again; a thread that is done takes from the others. Steps use a ring of counters: between a step and the one
 * four steps later there must be a barrier of all threads. */
#ifndef NMLP_KERNELS_GEMM_WORK_SHARING_H
#define NMLP_KERNELS_GEMM_WORK_SHARING_H

#include <stdatomic.h>

#include "kernels/kernels_internal.h"

enum { NMLP_GEMM_SHARE_RING = 8 };

typedef struct nmlp_gemm_share_slot {
    _Alignas(NMLP_LINE_BYTES) _Atomic int64_t next; /* taken of the owner's range */
} nmlp_gemm_share_slot;

typedef struct nmlp_gemm_share {
    nmlp_gemm_share_slot *slots; /* [ring][n_threads] */
    int n_threads;
} nmlp_gemm_share;

/* One thread's way through the steps; each thread keeps its own. */
typedef struct nmlp_gemm_worker {
    const nmlp_gemm_share *share;
    int thread;
    int64_t step;
    int64_t n_tasks;
    int victim; /* whose range is being taken from, counted from the own one */
} nmlp_gemm_worker;

static inline nmlp_gemm_share nmlp_gemm_share_carve(nmlp_carver *carver, int n_threads) {
    nmlp_gemm_share share = {.n_threads = n_threads};
    share.slots = nmlp_carve(carver, sizeof(nmlp_gemm_share_slot) * NMLP_GEMM_SHARE_RING * (size_t)n_threads);
    return share;
}

static inline nmlp_gemm_share_slot *nmlp_gemm_share_at(const nmlp_gemm_share *share, int64_t step) {
    return share->slots + step % NMLP_GEMM_SHARE_RING * share->n_threads;
}

/* Before the job: the first steps' counters. Later ones are cleared by their owners, four steps ahead. */
static inline void nmlp_gemm_share_begin(const nmlp_gemm_share *share) {
    for (int64_t step = 1; step <= NMLP_GEMM_SHARE_RING / 2; step++)
        for (int t = 0; t < share->n_threads; t++)
            atomic_store_explicit(&nmlp_gemm_share_at(share, step)[t].next, 0, memory_order_relaxed);
}

static inline void nmlp_gemm_worker_begin_step(nmlp_gemm_worker *worker, int64_t n_tasks) {
    worker->step++;
    worker->n_tasks = n_tasks;
    worker->victim = 0;
    nmlp_gemm_share_slot *later = nmlp_gemm_share_at(worker->share, worker->step + NMLP_GEMM_SHARE_RING / 2);
    atomic_store_explicit(&later[worker->thread].next, 0, memory_order_relaxed);
}

/* The next tasks, one after the other: up to `most`, towards the end of a range no more than half of what is left.
 * Their number, 0 when none is left. */
static inline int64_t nmlp_gemm_worker_take_some(nmlp_gemm_worker *worker, int64_t most, int64_t *first) {
    int n = worker->share->n_threads;
    for (; worker->victim < n; worker->victim++) {
        int owner = (worker->thread + worker->victim) % n;
        int64_t begin = worker->n_tasks * owner / n;
        int64_t end = worker->n_tasks * (owner + 1) / n;
        nmlp_gemm_share_slot *slot = nmlp_gemm_share_at(worker->share, worker->step) + owner;
        /* Looking is cheap where many threads look at ranges that are used up; taking makes them wait for each other.
         */
        int64_t left = end - begin - atomic_load_explicit(&slot->next, memory_order_relaxed);
        if (left <= 0) continue;
        int64_t wanted = 1;
        while (2 * wanted <= most && 4 * wanted <= left) wanted *= 2;
        *first = begin + atomic_fetch_add_explicit(&slot->next, wanted, memory_order_relaxed);
        if (*first < end) return nmlp_min(wanted, end - *first);
    }
    return 0;
}

/* The next task, or -1 when none is left. */
static inline int64_t nmlp_gemm_worker_take(nmlp_gemm_worker *worker) {
    int64_t at;
    return nmlp_gemm_worker_take_some(worker, 1, &at) ? at : -1;
}

#endif
