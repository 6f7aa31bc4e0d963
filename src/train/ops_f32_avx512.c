/* Training arithmetic in f32 for AVX-512. */
#define VEC_BYTES 64
#define MR 12
#define OPS_NAME "avx512"
#define OPS_SYMBOL nmlp_train_ops_f32_avx512
#include "train/ops_body.h"
