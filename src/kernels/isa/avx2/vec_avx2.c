#include "kernels/ops/vec_plain.h"
#include "kernels/ops/vec_body.h"

const nmlp_vec nmlp_vec_avx2 = {
#include "kernels/ops/vec_entries_body.h"
    .transpose = transpose_plain,
    .transpose_checked = transpose_plain_checked,
};
