/* The decoder written down once more, naively and in float64: the truth the engine is compared with where no outside
 * fixture is at hand. It shares no code with the engine; it reads weights through the model's views only. */
#ifndef NMLP_TESTS_REFERENCE_FORWARD_H
#define NMLP_TESTS_REFERENCE_FORWARD_H

#include <stdint.h>

#include "model/model.h"

/* logits [n, V] of every position. */
void reference_forward(const nmlp_model *model, const int32_t *ids, int64_t n, double *logits);

#endif
