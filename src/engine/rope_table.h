/* Rotation angles, for whoever runs or trains a decoder. */
#ifndef NMLP_ENGINE_ROPE_TABLE_H
#define NMLP_ENGINE_ROPE_TABLE_H

#include <stdint.h>

#include "checkpoint/config.h"

/* table [n_positions, D]: row p holds cos then sin of its D/2 angles. */
void nmlp_rope_table(float *table, const nmlp_rope_config *rope, int64_t n_positions, int64_t head_dim);

#endif
