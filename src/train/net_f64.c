/* Operators and nets in f64: what gradient checks use. */
#define NMLP_TRAIN_F64
#include "train/exec_body.h"
#include "train/net_body.h"
