/* Training arithmetic in f32 for AVX2. */
#define VEC_BYTES 32
#define MR 6
#define OPS_NAME "avx2"
#define OPS_SYMBOL nmlp_train_ops_f32_avx2
#include "train/ops_body.h"
