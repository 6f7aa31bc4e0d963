/* Gate and up of many rows in one kernel: out [S,I] = silu(x0 w0^T) * (x1 w1^T). Only the product is written; the two
 * factors stay in registers. */
#ifndef NMLP_CUDA_MLP_SWIGLU_GEMM_SM90_H
#define NMLP_CUDA_MLP_SWIGLU_GEMM_SM90_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nmlp_cuda_gated {
    void *out;        /* bf16 [S, out_pitch]; columns from N on are made zero */
    const void *x[2]; /* bf16 [S, x_pitch] */
    const void *w[2]; /* bf16 [N, k] */
    int32_t k[2];     /* multiples of 64 */
    int32_t x_pitch[2];
    int32_t out_pitch; /* a multiple of 64, at least N */
    int32_t s;
    int32_t n;
} nmlp_cuda_gated;

enum { NMLP_CUDA_GATED_ROWS = 128, NMLP_CUDA_GATED_COLS = 256, NMLP_CUDA_GATED_STEP = 64, NMLP_CUDA_MAP_BYTES = 128 };

/* A matrix for Hopper's copy engine. */
typedef struct nmlp_cuda_map {
    unsigned char bytes[NMLP_CUDA_MAP_BYTES];
} __attribute__((aligned(64))) nmlp_cuda_map;

/* The same for Hopper's tensor cores: matrices as maps of boxes of 64 columns. */
typedef struct nmlp_cuda_gated_hopper {
    nmlp_cuda_map x[2]; /* boxes of NMLP_CUDA_GATED_ROWS rows */
    nmlp_cuda_map w[2]; /* of half NMLP_CUDA_GATED_COLS */
    nmlp_cuda_map out;  /* of half NMLP_CUDA_GATED_ROWS */
    int32_t steps[2];   /* of k */
    int32_t row_pairs;  /* two blocks of rows each */
    int32_t col_tiles;
} nmlp_cuda_gated_hopper;

/* Whether the code that was loaded has Hopper's instructions. */
int nmlp_cuda_gated_has_hopper(void);
/* Both return a cudaError_t. */
int nmlp_cuda_launch_gated_hopper(const nmlp_cuda_gated_hopper *job, int n_multiprocessors, void *stream);
int nmlp_cuda_launch_gated(const nmlp_cuda_gated *g, void *stream);

#ifdef __cplusplus
}
#endif

#endif
