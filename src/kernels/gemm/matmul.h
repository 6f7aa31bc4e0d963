/* Packed matmuls, for the files that build on them. */
#ifndef NMLP_KERNELS_GEMM_MATMUL_H
#define NMLP_KERNELS_GEMM_MATMUL_H

#include "kernels/gemm/packed_weight.h"

typedef struct nmlp_matmul {
    const nmlp_kernels *kernels;
    const nmlp_gemm_weight *w;
    const float *bias; /* [N] or NULL */
} nmlp_matmul;

size_t nmlp_matmul_workspace_bytes(const nmlp_matmul *matmul, int64_t s, int n_threads);
/* ys[i] [S,N_i] = x [S,K] w_i^T + bias_i, all of one K; the workspace of any of them does;
 * `fused` may be NULL. */
void nmlp_matmul_run(const nmlp_matmul matmuls[], float *const ys[], int n, const float *x, int64_t s,
                     const nmlp_fused *fused, void *workspace, nmlp_pool *pool);

#endif
