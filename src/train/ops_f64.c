/* Training arithmetic in f64: the truth gradients are checked with. */
#define NMLP_TRAIN_F64
#define VEC_BYTES 16
#define MR 4
#define OPS_NAME "f64"
#define OPS_SYMBOL nmlp_train_ops_f64
#include "train/ops_body.h"
