/* A gather between processes of one machine through memory that they share: each writes its part, waits for the others
 * and reads theirs. One wait: the next gather takes the other of two areas, and nobody can be two gathers ahead. */
#ifndef NMLP_BASE_SHARED_GATHER_H
#define NMLP_BASE_SHARED_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/waiting.h"

/* In the shared memory, zeroed before the first use. */
typedef struct nmlp_shared_meeting {
    _Alignas(NMLP_LINE_ALIGN) atomic_uint n_arrived;
    _Alignas(NMLP_LINE_ALIGN) atomic_uint generation; /* counts meetings */
    atomic_uint n_asleep;
} nmlp_shared_meeting;

/* One process's end of it. */
typedef struct nmlp_shared_gather {
    int rank, size;
    nmlp_shared_meeting *meeting;
    char *areas[2];
    int64_t area_bytes;
    unsigned n_calls;
    unsigned spin_ns;        /* for how long to look before sleeping; 0 where there are fewer CPUs than processes */
    void (*idle)(void *ctx); /* called now and then while it waits; may be NULL */
    void *ctx;
} nmlp_shared_gather;

/* Of the shared memory, aligned to 64 bytes (NMLP_LINE_ALIGN), for messages of up to area_bytes. */
size_t nmlp_shared_gather_bytes(int64_t area_bytes);
void nmlp_shared_gather_open(nmlp_shared_gather *gather, void *memory, int64_t area_bytes, int rank, int size);

/* As nmlp_process_group's gather, of first[size] <= area_bytes. False: the others did not come in time; it cannot be
 * used any more then. */
bool nmlp_shared_gather_run(nmlp_shared_gather *gather, void *data, const int64_t *first, double timeout_s);

#endif
