/* LoRA adapters as PEFT saves them, merged into a model's matrices. */
#ifndef NMLP_MODEL_ADAPTER_H
#define NMLP_MODEL_ADAPTER_H

#include "model/model.h"

/* W += B A * alpha / r for every matrix that DIR/adapter_model.safetensors has, in f32 copies of those matrices. What
 * adapter_config.json asks for beyond that, and tensors that fit no dense matrix of the model, are refused by name. */
nmlp_status nmlp_model_merge_adapter(nmlp_model *model, const char *dir, nmlp_pool *pool, nmlp_err *err);

#endif
