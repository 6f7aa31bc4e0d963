/* How much memory work on a model will take, known from its shapes before any is taken. What is certain to be needed:
 * work that is refused could not have ended. */
#ifndef NMLP_SERVICE_MEMORY_NEED_H
#define NMLP_SERVICE_MEMORY_NEED_H

#include "model/model.h"

/* What is done beside holding the weights; 0: not done. */
typedef struct nmlp_memory_work {
    int64_t positions;    /* whose keys and values are kept, of one sequence; the model's context bounds it */
    int64_t sequences;    /* 0: one */
    int64_t calib_tokens; /* statistics of activations over these, as compress and quantize take them */
} nmlp_memory_work;

/* Packed weights on the CPU: of layers that do not stay in memory (resident_bytes of nmlp_engine_options) one at a
 * time. `widened`: quantised ones become f32. */
double nmlp_memory_weights_bytes(const nmlp_model *model, int64_t resident_bytes, bool widened);
double nmlp_memory_work_bytes(const nmlp_config *config, const nmlp_memory_work *work);

#endif
