/* One number type per translation unit: float for training, double where gradients are checked against finite
 * differences.
 *
 * The bodies in *_body.h are compiled once for each. A file that wants the double set defines NMLP_TRAIN_F64 before its
 * first include; the names below then mean the _f64 symbols. */
#ifndef NMLP_TRAIN_REAL_H
#define NMLP_TRAIN_REAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef NMLP_TRAIN_F64
typedef double nmlp_real;
#define NMLP_REAL_NAME(name) name##_f64
#else
typedef float nmlp_real;
#define NMLP_REAL_NAME(name) name##_f32
#endif

#define nmlp_products_select NMLP_REAL_NAME(nmlp_products_select)
#define nmlp_ops_select NMLP_REAL_NAME(nmlp_ops_select)

#define nmlp_exec_init NMLP_REAL_NAME(nmlp_exec_init)
#define nmlp_exec_fini NMLP_REAL_NAME(nmlp_exec_fini)
#define nmlp_exec_fix NMLP_REAL_NAME(nmlp_exec_fix)
#define nmlp_exec_matmul NMLP_REAL_NAME(nmlp_exec_matmul)
#define nmlp_linear_forward NMLP_REAL_NAME(nmlp_linear_forward)
#define nmlp_linear_backward_input NMLP_REAL_NAME(nmlp_linear_backward_input)
#define nmlp_linear_backward_weight NMLP_REAL_NAME(nmlp_linear_backward_weight)
#define nmlp_bias_forward NMLP_REAL_NAME(nmlp_bias_forward)
#define nmlp_bias_backward NMLP_REAL_NAME(nmlp_bias_backward)
#define nmlp_norm_forward NMLP_REAL_NAME(nmlp_norm_forward)
#define nmlp_norm_backward NMLP_REAL_NAME(nmlp_norm_backward)
#define nmlp_norm_backward_weight NMLP_REAL_NAME(nmlp_norm_backward_weight)
#define nmlp_rope_rotate NMLP_REAL_NAME(nmlp_rope_rotate)
#define nmlp_swiglu_forward NMLP_REAL_NAME(nmlp_swiglu_forward)
#define nmlp_swiglu_backward NMLP_REAL_NAME(nmlp_swiglu_backward)
#define nmlp_attend_forward NMLP_REAL_NAME(nmlp_attend_forward)
#define nmlp_attend_backward NMLP_REAL_NAME(nmlp_attend_backward)
#define nmlp_attend_next NMLP_REAL_NAME(nmlp_attend_next)
#define nmlp_embed_forward NMLP_REAL_NAME(nmlp_embed_forward)
#define nmlp_embed_backward NMLP_REAL_NAME(nmlp_embed_backward)
#define nmlp_loss_rows NMLP_REAL_NAME(nmlp_loss_rows)
#define nmlp_match_rows NMLP_REAL_NAME(nmlp_match_rows)
#define nmlp_rows_add NMLP_REAL_NAME(nmlp_rows_add)

#define nmlp_net_create NMLP_REAL_NAME(nmlp_net_create)
#define nmlp_net_destroy NMLP_REAL_NAME(nmlp_net_destroy)
#define nmlp_net_params NMLP_REAL_NAME(nmlp_net_params)
#define nmlp_net_exec NMLP_REAL_NAME(nmlp_net_exec)
#define nmlp_net_loss NMLP_REAL_NAME(nmlp_net_loss)
#define nmlp_growth_init NMLP_REAL_NAME(nmlp_growth_init)
#define nmlp_growth_fini NMLP_REAL_NAME(nmlp_growth_fini)
#define nmlp_net_next NMLP_REAL_NAME(nmlp_net_next)
#define nmlp_net_clear_grads NMLP_REAL_NAME(nmlp_net_clear_grads)
#define nmlp_net_layer_forward NMLP_REAL_NAME(nmlp_net_layer_forward)
#define nmlp_net_layer_backward NMLP_REAL_NAME(nmlp_net_layer_backward)
#define nmlp_net_bind NMLP_REAL_NAME(nmlp_net_bind)

#endif
