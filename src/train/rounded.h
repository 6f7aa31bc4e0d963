/* Training of quantised weights: the optimiser moves an f32 master copy, forward and backward see it rounded to the
 * codes and scales of the checkpoint, and the gradient passes the rounding unchanged (straight-through). Scales stay.
 */
#ifndef NMLP_TRAIN_ROUNDED_H
#define NMLP_TRAIN_ROUNDED_H

#include "base/mem.h"
#include "checkpoint/checkpoint_write.h"
#include "train/net.h"

typedef struct nmlp_train_rounded {
    nmlp_train_param *target; /* quantised in the checkpoint; its data is the rounded master */
    float *master;            /* [rows, cols], what is trained */
} nmlp_train_rounded;

/* Memory comes from the arena; the master begins as the target is. */
nmlp_status nmlp_train_rounded_init(nmlp_train_rounded *rounded, nmlp_train_param *target, nmlp_arena *arena,
                                    nmlp_err *err);
/* target = the nearest codes times scales */
void nmlp_train_rounded_apply(const nmlp_train_rounded *rounded, nmlp_pool *pool);

/* Writes a quantised param whose data are codes times scales: codes, then the scales of its source. */
nmlp_status nmlp_train_rounded_put(const nmlp_train_param *param, nmlp_checkpoint_writer *writer, nmlp_err *err);

#endif
