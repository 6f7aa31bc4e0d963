/* Quantised weights with the dot products of AVX-512 VNNI: one instruction for products and sum. */
#include <immintrin.h>

#include "kernels/isa/avx512/gemm_quant_avx512.h"
#include "kernels/isa/avx512/gemm_row_quant_avx512.h"

static inline __attribute__((always_inline)) __m512i dot_pairs(__m512i sum, __m512i codes, __m512i x) {
    return _mm512_dpwssd_epi32(sum, codes, x);
}

#include "kernels/isa/avx512/quant_avx512_body.h"

static void q8(const nmlp_gemm_microtile *p, int width) {
    if (p->rows == 1)
        nmlp_gemm_row_q8_avx512vnni(p);
    else
        sum_tile(p, NMLP_DTYPE_Q8, width);
}

static void q4(const nmlp_gemm_microtile *p, int width) {
    if (p->rows == 1 && !p->span.per_group_at)
        nmlp_gemm_row_q4_avx512vnni(p);
    else
        sum_tile(p, NMLP_DTYPE_Q4, width);
}

static void q4m(const nmlp_gemm_microtile *p, int width) {
    if (p->rows == 1)
        nmlp_gemm_row_q4m_avx512vnni(p);
    else
        sum_tile(p, NMLP_DTYPE_Q4M, width);
}

void nmlp_gemm_q8_64_avx512vnni(const nmlp_gemm_microtile *p) { q8(p, 64); }
void nmlp_gemm_q4_64_avx512vnni(const nmlp_gemm_microtile *p) { q4(p, 64); }
void nmlp_gemm_q8_32_avx512vnni(const nmlp_gemm_microtile *p) { q8(p, 32); }
void nmlp_gemm_q4_32_avx512vnni(const nmlp_gemm_microtile *p) { q4(p, 32); }
void nmlp_gemm_q4m_64_avx512vnni(const nmlp_gemm_microtile *p) { q4m(p, 64); }
void nmlp_gemm_q4m_32_avx512vnni(const nmlp_gemm_microtile *p) { q4m(p, 32); }
