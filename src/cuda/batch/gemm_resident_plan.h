/* Planning gemm_resident_sm90.h: how many rows of W a cluster takes, and the matrices' descriptions for TMA. */
#ifndef NMLP_CUDA_BATCH_GEMM_RESIDENT_PLAN_H
#define NMLP_CUDA_BATCH_GEMM_RESIDENT_PLAN_H

#include "cuda/batch/gemm_resident_sm90.h"
#include "cuda/mlp/mlp_plan.h"

/* `n8_tiles` is 0 where the shape or the device does not fit. Called twice, like everything that lays out an arena. */
nmlp_status nmlp_cuda_gemm_resident_plan(nmlp_cuda_gemm_resident *g, const nmlp_cuda_gemm_call *call,
                                         const nmlp_cuda_device *device, nmlp_cuda_arena *arena, nmlp_err *err);

#endif
