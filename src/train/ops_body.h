/* The table of one number type and instruction set: included by ops_<type>_<set>.c, which defines VEC_BYTES, MR and
 * OPS_NAME. */
#ifndef NMLP_TRAIN_OPS_BODY_H
#define NMLP_TRAIN_OPS_BODY_H

#include "train/attention_body.h"
#include "train/ops_internal.h"

const nmlp_train_ops OPS_SYMBOL = {
    .name = OPS_NAME,
    .products = {.name = OPS_NAME,
                 .strip = NR,
                 .k_step = 1,
                 .per_real = 1,
                 .multiply_scratch = MB * A_STRIDE,
                 .pack_b = pack_b,
                 .multiply = multiply},
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .norm_backward_weight = norm_backward_weight,
    .rope = rope,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .attend_scratch = attend_scratch,
    .attend_forward = attend_forward,
    .attend_backward = attend_backward,
    .attend_next = attend_next,
    .loss_row = loss_row,
    .match_row = match_row,
    .add = add,
};

#endif
