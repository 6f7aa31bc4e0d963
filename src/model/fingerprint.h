/* A number that tells models apart: of every byte of the weights, their names, types and shapes, and of all of the
 * configuration that the program understands. */
#ifndef NMLP_MODEL_FINGERPRINT_H
#define NMLP_MODEL_FINGERPRINT_H

#include <stdint.h>

#include "base/pool.h"
#include "model/model.h"

/* Adds configuration and weights to `hash`. Reads all weights once, at the speed of memory or disk, and gives their
 * pages back. Does not depend on the number of threads. */
nmlp_status nmlp_model_fingerprint(uint64_t *hash, const nmlp_model *model, nmlp_pool *pool, nmlp_err *err);

#endif
