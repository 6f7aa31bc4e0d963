/* A read-only look at a tensor somebody else owns: row-major, contiguous, last index fastest. */
#ifndef NMLP_TENSOR_VIEW_H
#define NMLP_TENSOR_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/dtype.h"

enum { NMLP_DIMS_MAX = 4, NMLP_SHAPE_TEXT_MAX = 96 };

typedef struct nmlp_view {
    const void *data; /* NULL: no tensor */
    nmlp_dtype dtype;
    int n_dims;
    int64_t shape[NMLP_DIMS_MAX];
    const void *scales;      /* of a quantised matrix (quant.h); NULL otherwise */
    int group;               /* elements of a row that share a scale or a multiplier: Q4, Q6M, Q5M, Q4M */
    const int8_t *per_group; /* [rows, groups] zero points of Q4 (NULL: all are 0), multipliers of Q6M, Q5M, Q4M */
} nmlp_view;

nmlp_view nmlp_view_2d(const void *data, nmlp_dtype dtype, int64_t rows, int64_t cols);
int64_t nmlp_view_elems(const nmlp_view *view);
size_t nmlp_view_bytes(const nmlp_view *view);
/* Address of row i of a matrix. */
const void *nmlp_view_row(const nmlp_view *view, int64_t row);
/* Rows first..first+n-1 of a matrix of any type. */
nmlp_view nmlp_view_rows(const nmlp_view *view, int64_t first, int64_t n);
/* Whether an address lies in it. */
bool nmlp_view_contains(const nmlp_view *view, const void *address);
/* "[2048,8192]" */
void nmlp_shape_text(char text[NMLP_SHAPE_TEXT_MAX], const int64_t *shape, int n_dims);
/* Index of the first NaN or Inf, or -1. */
int64_t nmlp_view_first_nonfinite(const nmlp_view *view);

#endif
