/* How far two arrays are apart. A NaN on either side (not both) counts as an infinite difference. */
#ifndef NMLP_TENSOR_DIFF_H
#define NMLP_TENSOR_DIFF_H

#include <stddef.h>

typedef struct nmlp_diff {
    double max_abs;    /* largest |got - want| */
    double max_want;   /* largest |want| */
    double rel_to_max; /* max_abs / max_want: the usual measure for logits and matmuls */
    double nmse;       /* sum (got-want)^2 / sum want^2 */
    size_t worst;      /* index of max_abs */
} nmlp_diff;

nmlp_diff nmlp_diff_f32(const float *got, const float *want, size_t n);
nmlp_diff nmlp_diff_f64(const float *got, const double *want, size_t n);

#endif
