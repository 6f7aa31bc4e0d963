#include "kernels/vec_avx512.h"

const nmlp_vec nmlp_vec_amx = {
    .silu_mul = silu_mul,
    .put_f32 = put_f32,
    .put_bf16 = put_bf16,
    .copy_rows = copy_rows,
    .add_rows = add_rows,
    .softmax = softmax,
    .softmax_bf16 = softmax_bf16,
    .pair_rows = pair_rows,
    .scale = scale_by,
    .dot = dot,
    .mul_scaled = mul_scaled,
    .add = add,
    .largest = largest,
    .exp_sums = exp_sums,
    .swiglu_squares = swiglu_squares,
    .rotate = rotate,
    .transpose = transpose,
    .transpose_checked = transpose_checked,
    .is_finite = is_finite,
};
