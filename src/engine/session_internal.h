/* Sessions as the CPU backend makes them. */
#ifndef NMLP_ENGINE_SESSION_INTERNAL_H
#define NMLP_ENGINE_SESSION_INTERNAL_H

#include "engine/session.h"
#include "engine/weights_cpu.h"

/* The work of nmlp_session_create. */
nmlp_status nmlp_session_create_cpu(nmlp_session **out, const nmlp_cpu_weights *weights, int64_t context, int64_t chunk,
                                    bool observed, nmlp_err *err);
const nmlp_cpu_weights *nmlp_session_weights(const nmlp_session *session);

#endif
