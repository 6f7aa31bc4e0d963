/* A batch of sequences on the CPU: one pool of KV pages, another for layers with windows, rows of all sequences side by
 * side in every matmul. */
#ifndef NMLP_ENGINE_BATCH_CPU_H
#define NMLP_ENGINE_BATCH_CPU_H

#include "engine/batch.h"
#include "engine/weights_cpu.h"

typedef struct nmlp_cpu_batch nmlp_cpu_batch;

/* As the entries of backend.h. */
nmlp_status nmlp_cpu_batch_create(nmlp_cpu_batch **out, const nmlp_cpu_weights *weights,
                                  const nmlp_batch_options *limits, nmlp_err *err);
void nmlp_cpu_batch_destroy(nmlp_cpu_batch *batch);
size_t nmlp_cpu_batch_cache_bytes(const nmlp_cpu_weights *weights, int64_t positions);
void nmlp_cpu_batch_open(nmlp_cpu_batch *batch, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_cached);
void nmlp_cpu_batch_close(nmlp_cpu_batch *batch, int32_t sequence);
int64_t nmlp_cpu_batch_truncate(nmlp_cpu_batch *batch, int32_t sequence, int64_t length);
nmlp_status nmlp_cpu_batch_fork(nmlp_cpu_batch *batch, int32_t parent, int64_t length, int32_t child, nmlp_err *err);
nmlp_status nmlp_cpu_batch_reserve(nmlp_cpu_batch *batch, int32_t sequence, int64_t n, nmlp_err *err);
nmlp_status nmlp_cpu_batch_step(nmlp_cpu_batch *batch, const nmlp_step_item *items, int64_t n_items, nmlp_err *err);

#endif
