/* Low-rank adapters on the factors: W = base + A B, A [N,a] and B [a,K] trained, the base frozen. The sum is written
 * into the param, so forward and backward know nothing of adapters and merging at the end is leaving it there; the rank
 * of the factors does not change. */
#ifndef NMLP_TRAIN_ADAPTERS_H
#define NMLP_TRAIN_ADAPTERS_H

#include "base/mem.h"
#include "train/optimiser.h"
#include "train/net.h"

typedef struct nmlp_train_adapter {
    nmlp_train_param *target; /* its grad is d(loss)/d(base + A B) */
    float *base;              /* [N,K] */
    float *a, *da;            /* [N,a]; random at first */
    float *b, *db;            /* [a,K]; zero at first */
    int64_t rank;
} nmlp_train_adapter;

/* Memory comes from the arena. A rank above the target's sides is cut down to them. */
nmlp_status nmlp_train_adapter_init(nmlp_train_adapter *adapter, nmlp_train_param *target, int64_t rank, uint64_t seed,
                                    nmlp_arena *arena, nmlp_err *err);
/* target = base + A B */
void nmlp_train_adapter_apply(const nmlp_train_adapter *adapter, nmlp_train_exec *exec);
/* da, db from the target's gradient. */
void nmlp_train_adapter_backward(const nmlp_train_adapter *adapter, nmlp_train_exec *exec);

#endif
