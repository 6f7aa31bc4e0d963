#include "base/barrier.h"

#include <limits.h>

enum { GROUP_THREADS = 4 };

static int group_threads(int n_threads) {
    int needed = (n_threads + NMLP_BARRIER_GROUPS - 1) / NMLP_BARRIER_GROUPS;
    return needed > GROUP_THREADS ? needed : GROUP_THREADS;
}

/* The last of n? Then the counter is ready for the next passage, which cannot begin before this one is open. */
static bool is_last(nmlp_barrier_count *count, int n) {
    if (atomic_fetch_add_explicit(&count->n, 1, memory_order_acq_rel) != n - 1) return false;
    atomic_store_explicit(&count->n, 0, memory_order_relaxed);
    return true;
}

unsigned nmlp_barrier_arrive(nmlp_barrier *barrier, int thread, int n_threads) {
    unsigned generation = atomic_load_explicit(&barrier->generation, memory_order_acquire);
    int size = group_threads(n_threads);
    int group = thread / size;
    int n_groups = (n_threads + size - 1) / size;
    int members = group + 1 < n_groups ? size : n_threads - group * size;
    if (!is_last(&barrier->groups[group], members) || !is_last(&barrier->root, n_groups)) return generation;
    /* In one order with a sleeper's increment and its look at the generation: one of the two sees the other. */
    atomic_fetch_add(&barrier->generation, 1);
    if (atomic_load(&barrier->n_asleep) > 0) nmlp_futex_wake(&barrier->generation, INT_MAX);
    return generation;
}

bool nmlp_barrier_passed(const nmlp_barrier *barrier, unsigned arrival) {
    return atomic_load_explicit(&barrier->generation, memory_order_acquire) != arrival;
}

void nmlp_barrier_await(nmlp_barrier *barrier, unsigned arrival) {
    nmlp_spin spin = {.limit_ns = atomic_load_explicit(barrier->spin_ns, memory_order_relaxed)};
    while (!nmlp_barrier_passed(barrier, arrival)) {
        if (nmlp_spin_pause(&spin)) continue;
        atomic_fetch_add(&barrier->n_asleep, 1);
        while (!nmlp_barrier_passed(barrier, arrival)) nmlp_futex_wait(&barrier->generation, arrival);
        atomic_fetch_sub(&barrier->n_asleep, 1);
    }
}

void nmlp_barrier_wait(nmlp_barrier *barrier, int thread, int n_threads) {
    if (n_threads > 1) nmlp_barrier_await(barrier, nmlp_barrier_arrive(barrier, thread, n_threads));
}
