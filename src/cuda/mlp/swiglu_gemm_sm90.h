/* SwiGLU GEMM of many rows: out [S,I] = silu(x0 w0^T) * (x1 w1^T). Only the product is written; the two factors stay in
 * registers. sm_90: TMA and wgmma (swiglu_gemm_sm90.cu); sm_80: cp.async and mma (prefill/gemm_sm80.cu). */
#ifndef NMLP_CUDA_MLP_SWIGLU_GEMM_SM90_H
#define NMLP_CUDA_MLP_SWIGLU_GEMM_SM90_H

#include <stdint.h>

#include "cuda/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nmlp_cuda_swiglu_gemm {
    void *out;        /* bf16 [S, out_pitch]; columns from N on are made zero */
    const void *x[2]; /* bf16 [S, x_pitch] */
    const void *w[2]; /* bf16 [N, k] */
    int32_t k[2];     /* multiples of 64 */
    int32_t x_pitch[2];
    int32_t out_pitch; /* a multiple of 64, at least N */
    int32_t s;
    int32_t n;
} nmlp_cuda_swiglu_gemm;

enum { NMLP_CUDA_SWIGLU_GEMM_ROWS = 128, NMLP_CUDA_SWIGLU_GEMM_COLS = 256, NMLP_CUDA_SWIGLU_GEMM_STEP = 64 };

/* The same for Hopper's tensor cores: matrices as maps of boxes of 64 columns. */
typedef struct nmlp_cuda_swiglu_gemm_sm90 {
    nmlp_cuda_tensor_map x[2]; /* boxes of NMLP_CUDA_SWIGLU_GEMM_ROWS rows */
    nmlp_cuda_tensor_map w[2]; /* of half NMLP_CUDA_SWIGLU_GEMM_COLS */
    nmlp_cuda_tensor_map out;  /* of half NMLP_CUDA_SWIGLU_GEMM_ROWS */
    int32_t steps[2];          /* of k */
    int32_t row_pairs;         /* two blocks of rows each */
    int32_t col_tiles;
} nmlp_cuda_swiglu_gemm_sm90;

/* Whether the code that was loaded has Hopper's instructions. */
int nmlp_cuda_swiglu_gemm_has_sm90(void);
/* Both return a cudaError_t. */
int nmlp_cuda_swiglu_gemm_sm90_launch(const nmlp_cuda_swiglu_gemm_sm90 *job, int n_multiprocessors, void *stream);
int nmlp_cuda_swiglu_gemm_sm80_launch(const nmlp_cuda_swiglu_gemm *g, void *stream);

#ifdef __cplusplus
}
#endif

#endif
