/* Training arithmetic in f32 for any CPU. */
#define VEC_BYTES 16
#define MR 4
#define OPS_NAME "ref"
#define OPS_SYMBOL nmlp_train_ops_f32_ref
#include "train/ops_body.h"
