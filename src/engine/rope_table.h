/* Rotation angles, for whoever runs or trains a decoder. */
#ifndef NMLP_ENGINE_ROPE_TABLE_H
#define NMLP_ENGINE_ROPE_TABLE_H

#include <stdint.h>

#include "checkpoint/config.h"

/* table [n_positions, R]: row p holds cos then sin of its R/2 angles. Kinds of rope that depend on the length of the
 * text take it to be n_positions: one table serves a whole text, so that its keys agree with each other. */
void nmlp_rope_table_fill(float *table, const nmlp_rope_config *rope, int64_t n_positions, int64_t rope_dim);
/* The same for queries that grow with their position (query_growth). */
void nmlp_rope_table_grow(float *table, const nmlp_rope_config *rope, int64_t n_positions, int64_t rope_dim);

#endif
