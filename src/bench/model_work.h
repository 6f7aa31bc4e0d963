/* What a model asks of the machine: FLOPs of a prompt, bytes of a decode step. */
#ifndef NMLP_BENCH_MODEL_WORK_H
#define NMLP_BENCH_MODEL_WORK_H

#include "model/model.h"

typedef struct nmlp_model_work {
    double layer_params; /* matrices of all layers as stored */
    double head_params;
    double matrix_bytes;   /* of all of them with their scales */
    double attention_flop; /* of a query and a key, all layers */
} nmlp_model_work;

nmlp_model_work nmlp_model_work_of(const nmlp_model *model);
/* Per token of a prompt of that length: the weights, the head once, and causal attention, where every query sees half
 * of the prompt in the mean. */
double nmlp_model_work_prompt_gflop(const nmlp_model_work *work, double prompt);
/* The weights, read once. */
double nmlp_model_work_step_gb(const nmlp_model_work *work);

#endif
