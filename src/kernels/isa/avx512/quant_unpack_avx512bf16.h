/* Strips of quantised weights to pairs of bf16, for tile products. */
#ifndef NMLP_KERNELS_ISA_AVX512_QUANT_UNPACK_AVX512BF16_H
#define NMLP_KERNELS_ISA_AVX512_QUANT_UNPACK_AVX512BF16_H

#include "kernels/gemm/gemm.h"

/* The same bits as nmlp_gemm_quant_unpack_bf16, but that subnormal results of Q4 are zero, as tiles take them. Needs no
 * tiles: the AVX-512 extensions that come with them. */
void nmlp_gemm_quant_unpack_avx512bf16(void *dst, const nmlp_gemm_quant_strip *strip, int64_t k);

#endif
