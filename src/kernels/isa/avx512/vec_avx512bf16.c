#include "kernels/isa/avx512/vec_avx512.h"

const nmlp_vec nmlp_vec_avx512bf16 = {
#include "kernels/ops/vec_entries_body.h"
    .transpose = transpose,
    .transpose_checked = transpose_checked,
};
