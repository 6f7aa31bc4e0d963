/* One row times quantised strips, in products of bytes: the row's int16 activations are halves of 8 bits, whose
 * products with codes are summed apart, exactly, and joined at the end of a group of 32 inputs. Codes need next to no
 * unpacking that way, which is most of what their kernels for several rows do. Same bits. */
#ifndef NMLP_KERNELS_ISA_AVX512_GEMM_ROW_QUANT_AVX512_H
#define NMLP_KERNELS_ISA_AVX512_GEMM_ROW_QUANT_AVX512_H

#include "kernels/gemm/gemm.h"

/* Q8, Q4M, and Q4 without zero points; the CPU has VNNI. */
void nmlp_gemm_row_q8_avx512vnni(const nmlp_gemm_microtile *p);
void nmlp_gemm_row_q4_avx512vnni(const nmlp_gemm_microtile *p);
void nmlp_gemm_row_q4m_avx512vnni(const nmlp_gemm_microtile *p);

#endif
