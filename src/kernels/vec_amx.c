#include "kernels/vec_avx512.h"

const nmlp_vec nmlp_vec_amx = {
#include "kernels/vec_entries.inc"
    .transpose = transpose,
    .transpose_checked = transpose_checked,
};
