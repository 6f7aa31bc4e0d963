/* Micro-kernels of up to 6 x 16 for quantised weights. */
#ifndef NMLP_KERNELS_ISA_AVX2_GEMM_QUANT_AVX2_H
#define NMLP_KERNELS_ISA_AVX2_GEMM_QUANT_AVX2_H

#include "kernels/gemm/gemm.h"

nmlp_gemm_microkernel nmlp_gemm_q8_avx2;
nmlp_gemm_microkernel nmlp_gemm_q4_avx2;
nmlp_gemm_microkernel nmlp_gemm_q4m_avx2;

#endif
