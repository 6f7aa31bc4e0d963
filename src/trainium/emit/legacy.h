/* Shared by the files of the legacy dialect. */
#ifndef NMLP_TRAINIUM_EMIT_LEGACY_H
#define NMLP_TRAINIUM_EMIT_LEGACY_H

#include "trainium/emit/source.h"

/* legacy_prepare.c */
/* Does the DMA need a mask, given the loops around it? */
bool nmlp_emit_legacy_masked(const nmlp_emit_source *src, const nmlp_instr *in, const int *loops, int n_loops);

/* legacy_edges.c */
/* Where whole tiles end along partitions (0) and dimensions (1...) of a buffer. */
int64_t nmlp_emit_legacy_reach(const nmlp_emit_source *src, const nmlp_buf_ref *ref, int at);
/* Unrolls loops whose last, empty iterations would write over data that lives in the same buffer. */
nmlp_status nmlp_emit_legacy_avoid_overruns(nmlp_emit_source *src);

/* legacy_declare.c */
void nmlp_emit_legacy_put_grid_name(const nmlp_emit_grid *grid, nmlp_str *out);
/* Writes `value` to a whole tile. */
void nmlp_emit_legacy_fill(nmlp_emit_source *src, const nmlp_buf_ref *ref, double value);

/* legacy.c */
void nmlp_emit_legacy_put_slices(const nmlp_emit_source *src, const nmlp_buf_ref *ref, nmlp_str *out);

#endif
