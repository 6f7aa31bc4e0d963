/* Shared by the files of the legacy dialect. */
#ifndef NMLP_EMIT_LEGACY_H
#define NMLP_EMIT_LEGACY_H

#include "emit/source.h"

/* legacy_prepare.c */
int64_t nmlp_legacy_full_trips(const nmlp_source *src, int loop);
/* Does the DMA need a mask, given the loops around it? */
bool nmlp_legacy_masked(const nmlp_source *src, const nmlp_instr *in, const int *loops, int n_loops);

/* legacy_declare.c */
void nmlp_legacy_put_grid_name(const nmlp_grid *grid, nmlp_str *out);
/* Writes `value` to a whole tile. */
void nmlp_legacy_fill(nmlp_source *src, const nmlp_buf_ref *ref, double value);

/* legacy.c */
void nmlp_legacy_put_slices(const nmlp_source *src, const nmlp_buf_ref *ref, nmlp_str *out);

#endif
