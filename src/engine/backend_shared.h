/* A model shared by the members of a process group, run by what one of them does: the first member's table sends each
 * of its calls to the others before it makes them itself, and they follow. So a server or a benchmark, whose steps
 * depend on clocks and clients, needs nothing but this table (backend.h); each member runs its part of the model on its
 * CPU. */
#ifndef NMLP_ENGINE_BACKEND_SHARED_H
#define NMLP_ENGINE_BACKEND_SHARED_H

#include "base/status.h"
#include "engine/backend.h"

/* Of the first member: weights need a tensor_group in the engine's options. Their end ends the others' following.
 * Scoring of texts and layers one at a time are not offered. */
const nmlp_backend *nmlp_backend_shared(void);

/* The other members, with an engine of the CPU's table that has the same group: makes the calls of the first until its
 * weights are gone. */
nmlp_status nmlp_engine_follow(const nmlp_engine *engine, const nmlp_process_group *group, nmlp_err *err);

#endif
