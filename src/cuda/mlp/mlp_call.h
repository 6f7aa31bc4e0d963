/* An MLP and the rows it is to be applied to, as the streaming kernels' plans take it. */
#ifndef NMLP_CUDA_MLP_MLP_CALL_H
#define NMLP_CUDA_MLP_MLP_CALL_H

#include "cuda/weights.h"

/* y f32 [S, y_pitch] = mlp(x bf16 [S, x_pitch]). */
typedef struct nmlp_cuda_mlp_call {
    const nmlp_cuda_mlp_weights *weights;
    const void *x;
    float *y;
    int32_t x_pitch;
    int32_t y_pitch;
    int32_t s;
} nmlp_cuda_mlp_call;

#endif
