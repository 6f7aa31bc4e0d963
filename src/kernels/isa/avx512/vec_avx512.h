/* The element-wise helpers with AVX-512, for the files whose flags decide what else there is. */
#ifndef NMLP_KERNELS_ISA_AVX512_VEC_AVX512_H
#define NMLP_KERNELS_ISA_AVX512_VEC_AVX512_H

#include "kernels/isa/avx512/lanes_avx512.h"
#include "kernels/isa/avx512/transpose_avx512.h"
#include "kernels/ops/vec_body.h"

/* Returns, in the highest bit of every half of a lane, whether the exponent there was ever all ones: adding to its
 * lowest bit carries into the sign, which is masked out before. */
static inline __attribute__((always_inline)) __m512i transpose_rows(void *dst, const float *from, int64_t row_stride,
                                                                    int64_t n_rows, int64_t n, __m512i exponent) {
    const __m512i lowest = _mm512_and_si512(exponent, _mm512_set1_epi32(0x00800080));
    __m512i carried = _mm512_setzero_si512();
    for (int64_t at = 0; at < n; at += LANES) {
        nmlp_avx512_square s;
        int64_t width = n - at < LANES ? n - at : LANES;
        __mmask16 mask = (__mmask16)((1u << width) - 1u);
#pragma GCC unroll 16
        for (int64_t j = 0; j < LANES; j++) {
            s.row[j] = j < n_rows ? _mm512_maskz_loadu_ps(mask, from + j * row_stride + at) : _mm512_setzero_ps();
            __m512i bits = _mm512_and_si512(_mm512_castps_si512(s.row[j]), exponent);
            carried = _mm512_or_si512(carried, _mm512_add_epi16(bits, lowest));
        }
        nmlp_avx512_transpose(&s);
#pragma GCC unroll 16
        for (int64_t i = 0; i < LANES; i++)
            if (i < width) _mm512_storeu_ps((float *)dst + (at + i) * LANES, s.row[i]);
    }
    return carried;
}

static void transpose(void *dst, const void *src, int64_t row_stride, int64_t n_rows, int64_t n) {
    (void)transpose_rows(dst, src, row_stride, n_rows, n, _mm512_setzero_si512());
}

static bool transpose_checked(void *dst, const void *src, int64_t row_stride, int64_t n_rows, int64_t n,
                              nmlp_dtype dtype) {
    __m512i exponent = _mm512_set1_epi32(dtype == NMLP_DTYPE_F32 ? 0x7f800000 : 0x7f807f80);
    __m512i carried = transpose_rows(dst, src, row_stride, n_rows, n, exponent);
    return _mm512_test_epi16_mask(carried, _mm512_set1_epi16((short)0x8000)) == 0;
}

#endif
