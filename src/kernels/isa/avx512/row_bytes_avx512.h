/* What the kernels of one row (gemm_row_quant_avx512.h) do with its int16 activations. */
#ifndef NMLP_KERNELS_ISA_AVX512_ROW_BYTES_AVX512_H
#define NMLP_KERNELS_ISA_AVX512_ROW_BYTES_AVX512_H

#include <immintrin.h>

#include "kernels/gemm/gemm.h"

#define INLINE static inline __attribute__((always_inline))

/* Low and high bytes of 32 int16, so that four of each meet the four codes of a word: per 8 inputs low, low, high,
 * high. Bytes of Q8 stand for inputs 0, 2, 1, 3, low halves of those of Q4 for 0, 4, 1, 5 and high ones for 2, 6, 3, 7.
 */
INLINE __m512i split_bytes(__m512i x, nmlp_dtype dtype) {
    const __m128i q8 = _mm_setr_epi8(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15);
    const __m128i q4 = _mm_setr_epi8(0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15);
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(dtype == NMLP_DTYPE_Q8 ? q8 : q4));
}

/* Loads spread a word for free, where compilers would take it from the vector that was stored, by shuffles. */
INLINE __m512i word(const volatile int32_t *words, int at) { return _mm512_set1_epi32(words[at]); }

#endif
