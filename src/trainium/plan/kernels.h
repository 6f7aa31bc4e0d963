/* The builders behind the kernel table. */
#ifndef NMLP_TRAINIUM_PLAN_KERNELS_H
#define NMLP_TRAINIUM_PLAN_KERNELS_H

#include "trainium/plan/kernel_table.h"

nmlp_status nmlp_kernel_xw_tiled(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xw_hoist(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xw_block(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xw_opt(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xuv_seq(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xuv_fused(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xtuv_fused(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xuv_naive(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xuv_turned(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xtuv_turned(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_mlp_up_paper(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_mlp_paper(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xw(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_xuv(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);
nmlp_status nmlp_kernel_mlp(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err);

#endif
