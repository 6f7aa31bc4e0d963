/* Generation on a GPU: the same request and statistics as generate.h, on a model resident on the device. */
#ifndef NMLP_ENGINE_GPU_H
#define NMLP_ENGINE_GPU_H

#include "cuda/cuda.h"
#include "engine/generate.h"

/* A session with room for `context` positions and the model's rotation angles. */
nmlp_status nmlp_gpu_session_create(nmlp_cuda_session **out, const nmlp_cuda_engine *engine, const nmlp_model *model, int64_t context,
                                    nmlp_err *err);

/* One request on a session of its own. Greedy choices and plain temperature are made on the device, while the next step is already
 * under way; top-k, top-p, min-p and the repetition penalty fetch the logits and choose as the CPU does. */
nmlp_status nmlp_gpu_generate(const nmlp_cuda_engine *engine, const nmlp_model *model, int64_t context,
                              const nmlp_generation *request, nmlp_generation_stats *stats, nmlp_err *err);

#endif
