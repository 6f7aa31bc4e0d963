#include "base/shared_gather.h"

#include <limits.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"

enum { LOOKS_PER_YIELD = 64, NAP_NS = 10 * 1000 * 1000 /* between looks at the time limit */ };

static size_t meeting_bytes(void) {
    return (sizeof(nmlp_shared_meeting) + NMLP_LINE_ALIGN - 1) / NMLP_LINE_ALIGN * NMLP_LINE_ALIGN;
}

size_t nmlp_shared_gather_bytes(int64_t area_bytes) { return meeting_bytes() + 2 * (size_t)area_bytes; }

void nmlp_shared_gather_open(nmlp_shared_gather *g, void *memory, int64_t area_bytes, int rank, int size) {
    char *areas = (char *)memory + meeting_bytes();
    *g = (nmlp_shared_gather){
        .rank = rank, .size = size, .meeting = memory, .areas = {areas, areas + area_bytes}, .area_bytes = area_bytes};
}

static bool has_met(const nmlp_shared_meeting *m, unsigned generation) {
    return atomic_load_explicit(&m->generation, memory_order_acquire) != generation;
}

static bool meet(const nmlp_shared_gather *g, double timeout_s) {
    nmlp_shared_meeting *m = g->meeting;
    nmlp_spin spin = {.limit_ns = g->spin_ns};
    unsigned generation = atomic_load_explicit(&m->generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&m->n_arrived, 1, memory_order_acq_rel) == (unsigned)g->size - 1) {
        atomic_store_explicit(&m->n_arrived, 0, memory_order_relaxed); /* the next meeting begins behind this one */
        /* In one order with a sleeper's increment and its look at the generation: one of the two sees the other. */
        atomic_fetch_add(&m->generation, 1);
        if (atomic_load(&m->n_asleep) > 0) nmlp_futex_wake_shared(&m->generation, INT_MAX);
        return true;
    }
    while (!has_met(m, generation) && nmlp_spin_pause(&spin))
        if (spin.n_looks % LOOKS_PER_YIELD == 0) sched_yield(); /* another of them may wait for this CPU */
    if (has_met(m, generation)) return true;
    double begin = nmlp_clock_seconds();
    bool late = false;
    atomic_fetch_add(&m->n_asleep, 1);
    while (!has_met(m, generation) && !late) {
        nmlp_futex_wait_shared(&m->generation, generation, NAP_NS);
        late = nmlp_clock_seconds() - begin > timeout_s;
        if (g->idle && !has_met(m, generation)) g->idle(g->ctx);
    }
    atomic_fetch_sub(&m->n_asleep, 1);
    return has_met(m, generation);
}

bool nmlp_shared_gather_run(nmlp_shared_gather *g, void *data, const int64_t *first, double timeout_s) {
    char *area = g->areas[g->n_calls++ % 2], *own = data;
    memcpy(area + first[g->rank], own + first[g->rank], (size_t)(first[g->rank + 1] - first[g->rank]));
    if (!meet(g, timeout_s)) return false;
    memcpy(own, area, (size_t)first[g->rank]);
    memcpy(own + first[g->rank + 1], area + first[g->rank + 1], (size_t)(first[g->size] - first[g->rank + 1]));
    return true;
}
