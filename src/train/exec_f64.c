/* Training operators in f64. */
#define NMLP_TRAIN_F64
#include "train/exec_body.h"
