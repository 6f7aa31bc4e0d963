/* The tables there are. */
#ifndef NMLP_TRAIN_OPS_INTERNAL_H
#define NMLP_TRAIN_OPS_INTERNAL_H

#include "train/ops.h"

#ifdef NMLP_TRAIN_F64
extern const nmlp_train_ops nmlp_train_ops_f64;
#else
extern const nmlp_train_ops nmlp_train_ops_f32_ref;
extern const nmlp_train_products nmlp_train_products_emu; /* amx's in plain C */
#if defined(__x86_64__)
extern const nmlp_train_ops nmlp_train_ops_f32_avx2;
extern const nmlp_train_ops nmlp_train_ops_f32_avx512;
extern const nmlp_train_products nmlp_train_products_amx;
extern const nmlp_train_products nmlp_train_products_emu_avx512; /* amx's but for the tile instructions */
#endif
#endif

#endif
