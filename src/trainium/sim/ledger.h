/* A shared resource over time: so much of it per nanosecond, booked in any order.
 *
 * Work that is ready early takes capacity that work booked before it left free, so a prefetch is not held up by a store
 * that comes earlier in the program but later in time. Time is cut into buckets; a ring of them is kept, older time
 * counts as full. The ring grows with the time it has to cover: most programs are short. */
#ifndef NMLP_TRAINIUM_SIM_LEDGER_H
#define NMLP_TRAINIUM_SIM_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_ledger_bucket {
    int64_t index; /* which bucket of time this is */
    double used;
    int64_t skip; /* full: the next bucket that may have room; 0: has room */
} nmlp_ledger_bucket;

typedef struct nmlp_ledger {
    nmlp_ledger_bucket *buckets;
    double rate;    /* units per ns */
    int64_t oldest; /* buckets before this one are forgotten */
    double total;   /* units booked */
    int64_t n;      /* buckets in the ring */
    bool starved;   /* there was no memory to grow: times are wrong */
} nmlp_ledger;

enum { NMLP_LEDGER_BUCKET_NS = 250 };

nmlp_status nmlp_ledger_init(nmlp_ledger *ledger, double units_per_ns, nmlp_err *err);
void nmlp_ledger_fini(nmlp_ledger *ledger);
/* Books `units` from time `from` on, at most `max_rate` units per ns; returns when the last one is done. */
double nmlp_ledger_book(nmlp_ledger *ledger, double from, double units, double max_rate);

#endif
