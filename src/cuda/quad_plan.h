/* Builds the program of an MLP of 5 to 32 rows on clusters of blocks (quad.h): how each product is cut and where its results lie. */
#ifndef NMLP_CUDA_QUAD_PLAN_H
#define NMLP_CUDA_QUAD_PLAN_H

#include "cuda/device.h"
#include "cuda/quad.h"
#include "cuda/weights.h"

/* y f32 [S, y_pitch] = mlp(x bf16 [S, x_pitch]). */
typedef struct nmlp_cuda_quad_mlp {
    const nmlp_cuda_mlp_weights *weights;
    const void *x;
    float *y;
    int32_t x_pitch;
    int32_t y_pitch;
    int32_t s;
} nmlp_cuda_quad_mlp;

/* Whether the device has clusters and their shared memory is enough for the shape. */
bool nmlp_cuda_quad_fits(const nmlp_cuda_quad_mlp *mlp, const nmlp_cuda_device *device);

/* Takes memory from `block`; called twice, like everything that lays out a block. The shape fits. */
nmlp_status nmlp_cuda_quad_plan(nmlp_cuda_quad_program *program, const nmlp_cuda_quad_mlp *mlp, const nmlp_cuda_device *device, nmlp_cuda_block *block,
                                nmlp_err *err);

#endif
