/* Builds the program of an MLP of 5 to 32 rows on clusters of blocks (quad.h): how each product is cut and where its
 * results lie. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_PLAN_H
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_PLAN_H

#include "cuda/device.h"
#include "cuda/mlp/mlp_call.h"
#include "cuda/mlp/mlp_cluster4_sm90.h"

/* Whether the device has clusters and their shared memory is enough for the shape. */
bool nmlp_cuda_quad_fits(const nmlp_cuda_mlp_call *mlp, const nmlp_cuda_device *device);

/* Takes memory from `block`; called twice, like everything that lays out a block. The shape fits. */
nmlp_status nmlp_cuda_quad_plan(nmlp_cuda_quad_program *program, const nmlp_cuda_mlp_call *mlp,
                                const nmlp_cuda_device *device, nmlp_cuda_block *block, nmlp_err *err);

#endif
