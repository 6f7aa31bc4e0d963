#include "kernels/vec_avx512.h"

const nmlp_vec nmlp_vec_avx512 = {
#include "kernels/vec_entries.inc"
    .transpose = transpose,
    .transpose_checked = transpose_checked,
};
