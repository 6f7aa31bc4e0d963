#include "trainium/sim/ledger.h"

#include "base/mem.h"

enum { N_FIRST = 1 << 10, N_MOST = 1 << 19 }; /* 0.25 ms, 131 ms */

static nmlp_ledger_bucket *new_buckets(int64_t n, nmlp_err *err) {
    nmlp_ledger_bucket *buckets = nmlp_mem_new((size_t)n, sizeof *buckets, err);
    for (int64_t i = 0; buckets && i < n; i++) buckets[i].index = -1;
    return buckets;
}

nmlp_status nmlp_ledger_init(nmlp_ledger *ledger, double units_per_ns, nmlp_err *err) {
    *ledger = (nmlp_ledger){.rate = units_per_ns, .n = N_FIRST};
    ledger->buckets = new_buckets(N_FIRST, err);
    return ledger->buckets ? NMLP_OK : NMLP_E_NOMEM;
}

void nmlp_ledger_fini(nmlp_ledger *ledger) {
    nmlp_mem_free(ledger->buckets);
    *ledger = (nmlp_ledger){0};
}

static bool grow(nmlp_ledger *l) {
    nmlp_err err = {0};
    if (l->n == N_MOST || l->starved) return false;
    nmlp_ledger_bucket *wider = new_buckets(2 * l->n, &err);
    if (!wider) l->starved = true;
    if (!wider) return false;
    for (int64_t i = 0; i < l->n; i++)
        if (l->buckets[i].index >= 0) wider[l->buckets[i].index % (2 * l->n)] = l->buckets[i];
    nmlp_mem_free(l->buckets);
    l->buckets = wider;
    l->n *= 2;
    return true;
}

static nmlp_ledger_bucket *bucket_at(nmlp_ledger *l, int64_t index) {
    nmlp_ledger_bucket *b = &l->buckets[index % l->n];
    while (b->index != index && b->index >= 0 && grow(l)) b = &l->buckets[index % l->n];
    if (b->index != index) {
        if (l->oldest <= b->index) l->oldest = b->index + 1;
        *b = (nmlp_ledger_bucket){.index = index};
    }
    return b;
}

/* The first bucket from `index` on that has room; remembers the way over full ones. */
static int64_t find_room(nmlp_ledger *l, int64_t index) {
    if (index < l->oldest) index = l->oldest;
    int64_t at = index;
    for (nmlp_ledger_bucket *b; (b = bucket_at(l, at))->skip;) at = b->skip;
    while (index < at) {
        nmlp_ledger_bucket *b = bucket_at(l, index);
        int64_t next = b->skip;
        b->skip = at;
        index = next;
    }
    return at;
}

double nmlp_ledger_book(nmlp_ledger *l, double from, double units, double max_rate) {
    const double width = NMLP_LEDGER_BUCKET_NS, capacity = l->rate * width;
    double end = from;
    if (max_rate > l->rate) max_rate = l->rate;
    l->total += units;
    for (int64_t index = (int64_t)(from / width); units > 1e-9; index++) {
        index = find_room(l, index);
        nmlp_ledger_bucket *b = bucket_at(l, index);
        double open = (double)index * width, begin = from > open ? from : open;
        double room = capacity - b->used, quick = max_rate * (open + width - begin);
        double take = units < room ? units : room;
        if (take > quick) take = quick;
        if (take > 0) {
            b->used += take;
            units -= take;
            double by_rate = begin + take / max_rate, by_load = open + b->used / l->rate;
            end = by_rate > by_load ? by_rate : by_load;
            if (end > open + width) end = open + width;
        }
        if (b->used >= capacity * (1 - 1e-9)) b->skip = index + 1;
    }
    return end;
}
