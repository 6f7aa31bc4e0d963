/* Generation and evaluation on a GPU, of a model resident on the device. */
#ifndef NMLP_ENGINE_GPU_H
#define NMLP_ENGINE_GPU_H

#include "cuda/cuda.h"
#include "engine/engine.h"
#include "engine/generate.h"

/* An engine that stands for a model on the GPU, so that evaluation takes either. It has no sessions of its own:
 * nmlp_session_create refuses it. Model, GPU engine and pool are borrowed. */
nmlp_status nmlp_engine_create_on_gpu(nmlp_engine **out, const nmlp_model *model, const nmlp_cuda_engine *gpu,
                                      nmlp_pool *pool, nmlp_err *err);
/* NULL: the engine runs on the CPU. */
const nmlp_cuda_engine *nmlp_engine_gpu(const nmlp_engine *engine);

/* A scorer of such an engine, for texts of up to `positions` + 1 tokens. */
nmlp_status nmlp_gpu_scorer_create(nmlp_cuda_scorer **out, const nmlp_engine *engine, int64_t positions, nmlp_err *err);

/* A session with room for `context` positions and the model's rotation angles. */
nmlp_status nmlp_gpu_session_create(nmlp_cuda_session **out, const nmlp_cuda_engine *engine, const nmlp_model *model,
                                    int64_t context, nmlp_err *err);

/* One request, as in generate.h, on a session of its own. Greedy choices and plain temperature are made on the device,
 * while the next step is already under way; top-k, top-p, min-p and the repetition penalty fetch the logits and choose
 * as the CPU does. */
nmlp_status nmlp_gpu_generate(const nmlp_cuda_engine *engine, const nmlp_model *model, int64_t context,
                              const nmlp_generation *request, nmlp_generation_stats *stats, nmlp_err *err);

#endif
