/* The MLP for many rows: large matmuls with bf16 between them. Above NMLP_CUDA_MLP_GEMM_UNFUSED_ROWS rows gate and up
 * are one kernel (swiglu_gemm_sm90.h), and what they are before silu(gate) * up never reaches memory. */
#ifndef NMLP_CUDA_MLP_MLP_GEMM_H
#define NMLP_CUDA_MLP_MLP_GEMM_H

#include "cuda/blas.h"
#include "cuda/weights.h"

enum { NMLP_CUDA_MLP_GEMM_UNFUSED_ROWS = 256 };

/* bf16 rows an MLP of many rows writes between its matmuls. */
typedef struct nmlp_cuda_mlp_gemm_buffers {
    void *basis; /* [S, basis n padded] */
    void *act;   /* [S, I padded] silu(gate) * up */
    void *up;    /* the same width, NMLP_CUDA_MLP_GEMM_UNFUSED_ROWS rows at most */
    void *inner; /* [S, down rank padded] */
} nmlp_cuda_mlp_gemm_buffers;

/* Takes room for S rows of the widest of the MLPs given. */
void nmlp_cuda_mlp_gemm_buffers_take(nmlp_cuda_mlp_gemm_buffers *rows, nmlp_cuda_arena *arena,
                                     const nmlp_cuda_mlp_weights *const *mlps, int64_t n, int64_t s);

typedef struct nmlp_cuda_mlp_gemm {
    const nmlp_cuda_mlp_weights *w;
    const nmlp_cuda_mlp_gemm_buffers *rows;
    const void *x; /* bf16 [S, H padded] */
    float *y;      /* f32 [S, H padded] */
    bool accumulate;
    bool portable; /* nothing of Hopper's */
    int32_t s;
    int32_t n_multiprocessors;
    nmlp_cuda_blas *blas;
    cudaStream_t stream;
} nmlp_cuda_mlp_gemm;

nmlp_status nmlp_cuda_mlp_gemm_run(const nmlp_cuda_mlp_gemm *m, nmlp_err *err);

#endif
