/* Builds the program of an MLP of 5 to 32 rows (batch.h): how each matmul is cut and where its results lie. */
#ifndef NMLP_CUDA_MLP_MLP_ROWS32_SM80_PLAN_H
#define NMLP_CUDA_MLP_MLP_ROWS32_SM80_PLAN_H

#include "cuda/mlp/mlp_rows32_sm80.h"
#include "cuda/device.h"
#include "cuda/mlp/mlp_call.h"

/* Takes memory from `block`; called twice, like everything that lays out a block. */
nmlp_status nmlp_cuda_batch_plan(nmlp_cuda_batch_program *program, const nmlp_cuda_mlp_call *mlp,
                                 const nmlp_cuda_device *device, nmlp_cuda_block *block, nmlp_err *err);

#endif
