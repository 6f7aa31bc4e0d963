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
typedef double nmlp_train_real;
#define NMLP_TRAIN_NAME(name) name##_f64
#else
typedef float nmlp_train_real;
#define NMLP_TRAIN_NAME(name) name##_f32
#endif

#define nmlp_train_products_select NMLP_TRAIN_NAME(nmlp_train_products_select)
#define nmlp_train_ops_select NMLP_TRAIN_NAME(nmlp_train_ops_select)

#define nmlp_train_exec_init NMLP_TRAIN_NAME(nmlp_train_exec_init)
#define nmlp_train_exec_fini NMLP_TRAIN_NAME(nmlp_train_exec_fini)
#define nmlp_train_exec_fix NMLP_TRAIN_NAME(nmlp_train_exec_fix)
#define nmlp_train_exec_matmul NMLP_TRAIN_NAME(nmlp_train_exec_matmul)
#define nmlp_train_linear_forward NMLP_TRAIN_NAME(nmlp_train_linear_forward)
#define nmlp_train_linear_backward_input NMLP_TRAIN_NAME(nmlp_train_linear_backward_input)
#define nmlp_train_linear_backward_weight NMLP_TRAIN_NAME(nmlp_train_linear_backward_weight)
#define nmlp_train_bias_forward NMLP_TRAIN_NAME(nmlp_train_bias_forward)
#define nmlp_train_bias_backward NMLP_TRAIN_NAME(nmlp_train_bias_backward)
#define nmlp_train_norm_forward NMLP_TRAIN_NAME(nmlp_train_norm_forward)
#define nmlp_train_norm_backward NMLP_TRAIN_NAME(nmlp_train_norm_backward)
#define nmlp_train_norm_backward_weight NMLP_TRAIN_NAME(nmlp_train_norm_backward_weight)
#define nmlp_train_rope_rotate NMLP_TRAIN_NAME(nmlp_train_rope_rotate)
#define nmlp_train_swiglu_forward NMLP_TRAIN_NAME(nmlp_train_swiglu_forward)
#define nmlp_train_swiglu_backward NMLP_TRAIN_NAME(nmlp_train_swiglu_backward)
#define nmlp_train_attention_forward NMLP_TRAIN_NAME(nmlp_train_attention_forward)
#define nmlp_train_attention_backward NMLP_TRAIN_NAME(nmlp_train_attention_backward)
#define nmlp_train_attention_next NMLP_TRAIN_NAME(nmlp_train_attention_next)
#define nmlp_train_embed_forward NMLP_TRAIN_NAME(nmlp_train_embed_forward)
#define nmlp_train_embed_backward NMLP_TRAIN_NAME(nmlp_train_embed_backward)
#define nmlp_train_loss_rows NMLP_TRAIN_NAME(nmlp_train_loss_rows)
#define nmlp_train_match_rows NMLP_TRAIN_NAME(nmlp_train_match_rows)
#define nmlp_train_rows_add NMLP_TRAIN_NAME(nmlp_train_rows_add)

#define nmlp_train_net_create NMLP_TRAIN_NAME(nmlp_train_net_create)
#define nmlp_train_net_destroy NMLP_TRAIN_NAME(nmlp_train_net_destroy)
#define nmlp_train_net_params NMLP_TRAIN_NAME(nmlp_train_net_params)
#define nmlp_train_net_exec NMLP_TRAIN_NAME(nmlp_train_net_exec)
#define nmlp_train_net_loss NMLP_TRAIN_NAME(nmlp_train_net_loss)
#define nmlp_train_growth_init NMLP_TRAIN_NAME(nmlp_train_growth_init)
#define nmlp_train_growth_fini NMLP_TRAIN_NAME(nmlp_train_growth_fini)
#define nmlp_train_net_next NMLP_TRAIN_NAME(nmlp_train_net_next)
#define nmlp_train_net_clear_grads NMLP_TRAIN_NAME(nmlp_train_net_clear_grads)
#define nmlp_train_net_layer_forward NMLP_TRAIN_NAME(nmlp_train_net_layer_forward)
#define nmlp_train_net_layer_backward NMLP_TRAIN_NAME(nmlp_train_net_layer_backward)
#define nmlp_train_net_bind NMLP_TRAIN_NAME(nmlp_train_net_bind)

#endif
