/* Where the buffers of a program live, as the compiler would decide it: all copies if they fit; else managed buffers
 * give up their extra copies, largest first; else the largest managed buffers are spilled: the rows that do not fit
 * live in HBM and pass through a few staging rows. A buffer that only DMAs write is reloaded, never stored. Machines
 * with spill_whole spill an accumulator with all its rows. */
#ifndef NMLP_TRAINIUM_SIM_RESIDENCY_H
#define NMLP_TRAINIUM_SIM_RESIDENCY_H

#include "trainium/neuron/machine.h"
#include "trainium/neuron/program.h"

enum { NMLP_STAGING_BYTES = 16384, NMLP_STAGING_ROWS_MIN = 4, NMLP_STAGING_ROWS_MAX = 64 };

typedef struct nmlp_placement {
    int copies;
    int64_t rows;     /* of the last dimension, per copy */
    int64_t resident; /* rows with a place of their own; the others are spilled */
    int staging;      /* rows of the staging area of a spilled buffer */
} nmlp_placement;

/* `places` has one entry per buffer. NMLP_E_LIMIT when it cannot be placed. */
nmlp_status nmlp_place_buffers(const nmlp_program *program, const nmlp_machine *machine, nmlp_placement *places,
                               nmlp_err *err);
/* SBUF bytes per partition in use. */
int64_t nmlp_placed_sbuf_bytes(const nmlp_program *program, const nmlp_placement *places);

#endif
