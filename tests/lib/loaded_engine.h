/* A model directory opened with a pool and an engine, for tests. */
#ifndef NMLP_TESTS_LOADED_ENGINE_H
#define NMLP_TESTS_LOADED_ENGINE_H

#include "engine/session.h"

typedef struct loaded_engine {
    nmlp_pool *pool;
    nmlp_model model;
    nmlp_engine *engine;
} loaded_engine;

void loaded_engine_open(loaded_engine *l, const char *dir, const char *isa, int n_threads);
void loaded_engine_close(loaded_engine *l);
/* logits [n,V] of every position through a session of the given chunk; free with nmlp_mem_free. */
float *loaded_engine_logits(const loaded_engine *l, const int32_t *ids, int64_t n, int64_t chunk);

#endif
