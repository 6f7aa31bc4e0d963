/* What the MLP matrices of a model cost on a Trainium core, as the planner has it. */
#ifndef NMLP_SERVICE_MLP_COST_H
#define NMLP_SERVICE_MLP_COST_H

#include "checkpoint/config.h"
#include "compress/ranks/cost.h"

/* Plans the model's MLP for so many rows (1: a token is decoded), dense and with its smallest and largest rank in tiles
 * of `tile`, and draws the line through these three times: decode waits for weights and prefill for products, so time
 * grows with parameters. Simulated; the launch, once for a whole model, is left out. `target` is a built-in machine or
 * a file. */
nmlp_status nmlp_service_mlp_cost(nmlp_cost_line *line, const char *target, const nmlp_config *config, int64_t rows,
                                  int64_t tile, nmlp_err *err);

#endif
