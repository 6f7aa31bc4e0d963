#include "kernels/vec_plain.h"
#include "kernels/vec_body.h"

const nmlp_vec nmlp_vec_ref = {
#include "kernels/vec_entries.inc"
    .transpose = transpose_plain,
    .transpose_checked = transpose_plain_checked,
};
