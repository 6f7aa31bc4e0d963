/* What the MLP matrices of a model cost on a Trainium core when one token is decoded, as the planner has it. */
#ifndef NMLP_SERVICE_DECODE_COST_H
#define NMLP_SERVICE_DECODE_COST_H

#include "checkpoint/config.h"
#include "compress/ranks/cost.h"

/* Plans the model's MLP for one row, dense and with its smallest and largest rank in tiles of `tile`, and draws the
 * line through these three times: decode waits for weights, so time grows with parameters. Simulated; the launch, once
 * for a whole model, is left out. `target` is a built-in machine or a file. */
nmlp_status nmlp_service_decode_cost(nmlp_cost_line *line, const char *target, const nmlp_config *config, int64_t tile,
                                     nmlp_err *err);

#endif
