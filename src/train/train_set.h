/* Which weights are trained; the others stay as they are. */
#ifndef NMLP_TRAIN_TRAIN_SET_H
#define NMLP_TRAIN_TRAIN_SET_H

typedef enum nmlp_train_set {
    NMLP_TRAIN_FACTORS, /* u and v of factorised MLP matrices */
    NMLP_TRAIN_MLP,     /* all MLP matrices, dense ones too */
    NMLP_TRAIN_ALL,
    NMLP_TRAIN_NOTHING /* a net that is only run */
} nmlp_train_set;

#endif
