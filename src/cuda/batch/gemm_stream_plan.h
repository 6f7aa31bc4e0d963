/* Planning gemm_stream_sm90.h: its tiles, its ring, and the matrices' descriptions for TMA. */
#ifndef NMLP_CUDA_BATCH_GEMM_STREAM_PLAN_H
#define NMLP_CUDA_BATCH_GEMM_STREAM_PLAN_H

#include "cuda/batch/gemm_stream_sm90.h"
#include "cuda/mlp/mlp_plan.h"

/* `n_stages` is 0 where the shape or the device does not fit. Called twice, like everything that lays out an arena. */
nmlp_status nmlp_cuda_gemm_stream_plan(nmlp_cuda_gemm_stream *g, const nmlp_cuda_gemm_call *call,
                                       const nmlp_cuda_device *device, nmlp_cuda_arena *arena, nmlp_err *err);

#endif
