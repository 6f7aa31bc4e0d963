/* Nested factors of slices of the intermediate width, each slice factorised by itself (model/slices.h), and what is
 * between them and the factors of whole matrices: as those, they are block diagonal. */
#ifndef NMLP_COMPRESS_FACTOR_FACTOR_SLICES_H
#define NMLP_COMPRESS_FACTOR_FACTOR_SLICES_H

#include "compress/factor/factorise.h"
#include "model/model.h"

/* One entry for all slices from parts [n] of the same matrix: vector i of slice s becomes vector i*n+s, losses add up.
 */
nmlp_status nmlp_nested_join(nmlp_nested *joined, const nmlp_nested *const *parts, int64_t n, nmlp_err *err);

/* Blocks [n*rank, n*rows] of the first `rank` vectors of every slice, `count` elements from `first` of each: zero
 * outside of a vector's slice. `vectors` [n*rank, width] are a joined entry's ut or v. */
nmlp_status nmlp_slice_blocks(void **blocks, const void *vectors, nmlp_dtype dtype, int64_t n, int64_t rank,
                              int64_t width, int64_t first, int64_t count, nmlp_err *err);

/* The factors of slices one below the other, as checkpoints have them, from block diagonal factors f of a whole
 * matrix: new memory in *u and *v. */
nmlp_status nmlp_slice_stack(nmlp_factors *stacked, void **u, void **v, const nmlp_factors *f, bool down, int64_t n,
                             nmlp_err *err);

/* Rows y [S,H] = the part of a layer's output that comes through one slice, given as dense matrices. */
nmlp_status nmlp_slice_run(const nmlp_factors mlp[NMLP_MLP_MATRICES], nmlp_activation activation,
                           const nmlp_kernels *kernels, float *y, const float *x, int64_t s, int64_t hidden,
                           nmlp_pool *pool, nmlp_err *err);

#endif
