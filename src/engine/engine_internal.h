/* What the parts of the engine share behind engine.h. */
#ifndef NMLP_ENGINE_ENGINE_INTERNAL_H
#define NMLP_ENGINE_ENGINE_INTERNAL_H

#include "engine/engine.h"

/* The weights as the engine's backend made them. */
const void *nmlp_engine_weights(const nmlp_engine *engine);

#endif
