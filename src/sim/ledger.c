#include "sim/ledger.h"

#include "base/mem.h"

enum { N_BUCKETS = 1 << 15 }; /* 8 ms */

nmlp_status nmlp_ledger_init(nmlp_ledger *ledger, double units_per_ns, nmlp_err *err) {
    *ledger = (nmlp_ledger){.rate = units_per_ns};
    ledger->buckets = nmlp_mem_new(N_BUCKETS, sizeof *ledger->buckets, err);
    return ledger->buckets ? NMLP_OK : NMLP_E_NOMEM;
}

void nmlp_ledger_fini(nmlp_ledger *ledger) {
    nmlp_mem_free(ledger->buckets);
    *ledger = (nmlp_ledger){0};
}

static nmlp_ledger_bucket *bucket_at(nmlp_ledger *l, int64_t index) {
    nmlp_ledger_bucket *b = &l->buckets[index % N_BUCKETS];
    if (b->index != index) {
        if (l->full_to <= b->index) l->full_to = b->index + 1; /* forgotten */
        *b = (nmlp_ledger_bucket){.index = index};
    }
    return b;
}

double nmlp_ledger_book(nmlp_ledger *l, double from, double units, double max_rate) {
    const double width = NMLP_LEDGER_BUCKET_NS, capacity = l->rate * width;
    double end = from;
    if (max_rate > l->rate) max_rate = l->rate;
    l->total += units;
    int64_t index = (int64_t)(from / width);
    if (index < l->full_to) index = l->full_to;
    while (units > 1e-9) {
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
        if (b->used >= capacity * (1 - 1e-9) && index == l->full_to) l->full_to++;
        index++;
    }
    return end;
}
