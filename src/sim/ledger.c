#include "sim/ledger.h"

#include "base/mem.h"

enum { N_BUCKETS = 1 << 15 }; /* 8 ms */

nmlp_status nmlp_ledger_init(nmlp_ledger *ledger, double units_per_ns, nmlp_err *err) {
    *ledger = (nmlp_ledger){.rate = units_per_ns};
    ledger->buckets = nmlp_mem_new(N_BUCKETS, sizeof *ledger->buckets, err);
    if (!ledger->buckets) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < N_BUCKETS; i++) ledger->buckets[i].index = -1;
    return NMLP_OK;
}

void nmlp_ledger_fini(nmlp_ledger *ledger) {
    nmlp_mem_free(ledger->buckets);
    *ledger = (nmlp_ledger){0};
}

static nmlp_ledger_bucket *bucket_at(nmlp_ledger *l, int64_t index) {
    nmlp_ledger_bucket *b = &l->buckets[index % N_BUCKETS];
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
