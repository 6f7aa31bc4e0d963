/* AdamW over f32 master weights, with clipping of the gradient's norm, and the learning rate of a step. Results do not
 * depend on the number of threads. */
#ifndef NMLP_TRAIN_OPTIMISER_H
#define NMLP_TRAIN_OPTIMISER_H

#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"

/* One array of weights and what the optimiser remembers about it. */
typedef struct nmlp_train_trainable {
    float *data;
    float *grad;
    float *mean;   /* first moment */
    float *square; /* second moment */
    int64_t n;
} nmlp_train_trainable;

typedef struct nmlp_train_adamw {
    double beta1, beta2, epsilon;
    double weight_decay;
} nmlp_train_adamw;

nmlp_train_adamw nmlp_train_adamw_defaults(void); /* 0.9, 0.95, 1e-8, 0 */

/* Euclidean norm of all gradients together, summed in f64 in a fixed order. */
nmlp_status nmlp_train_grad_norm(nmlp_pool *pool, const nmlp_train_trainable *arrays, size_t n, double *norm,
                                 nmlp_err *err);

/* Update number `step` (from 1) with gradients times grad_scale. */
void nmlp_train_adamw_update(const nmlp_train_adamw *adam, nmlp_pool *pool, nmlp_train_trainable *arrays, size_t n,
                             double rate, int64_t step, double grad_scale);

/* Linear warm-up, then half a cosine down to a fraction of the peak. */
typedef struct nmlp_train_schedule {
    double peak;
    double floor;   /* fraction of the peak at the last step */
    int64_t warmup; /* steps; step `warmup` is the first at the peak */
    int64_t steps;
} nmlp_train_schedule;

/* step from 0 to steps-1 */
double nmlp_train_schedule_rate(const nmlp_train_schedule *schedule, int64_t step);

#endif
