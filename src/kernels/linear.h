/* A packed matmul, for the files that build on it. */
#ifndef NMLP_KERNELS_LINEAR_H
#define NMLP_KERNELS_LINEAR_H

#include "kernels/matrix.h"

typedef struct nmlp_matmul {
    const nmlp_kernels *kernels;
    const nmlp_matrix *w;
    const float *bias; /* [N] or NULL */
} nmlp_matmul;

size_t nmlp_matmul_workspace_bytes(const nmlp_matmul *matmul, int64_t s, int n_threads);
/* y [S,N] = x [S,K] w^T + bias */
void nmlp_matmul_run(const nmlp_matmul *matmul, float *y, const float *x, int64_t s, void *workspace, nmlp_pool *pool);

#endif
