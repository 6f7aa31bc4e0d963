/* 16 x 16 elements of 4 bytes, transposed in registers. For files compiled for AVX-512 only. */
#ifndef NMLP_KERNELS_ISA_AVX512_TRANSPOSE_AVX512_H
#define NMLP_KERNELS_ISA_AVX512_TRANSPOSE_AVX512_H

#include <immintrin.h>

enum { NMLP_AVX512_LANES = 16 };

typedef struct nmlp_avx512_square {
    __m512 row[NMLP_AVX512_LANES];
} nmlp_avx512_square;

/* Transposes in registers: 32-bit, then 64-bit, then 128-bit neighbours change places. */
static inline __attribute__((always_inline)) void nmlp_avx512_transpose(nmlp_avx512_square *s) {
    nmlp_avx512_square t;
#pragma GCC unroll 8
    for (int i = 0; i < NMLP_AVX512_LANES; i += 2) {
        t.row[i] = _mm512_unpacklo_ps(s->row[i], s->row[i + 1]);
        t.row[i + 1] = _mm512_unpackhi_ps(s->row[i], s->row[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < NMLP_AVX512_LANES; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            __m512d low = _mm512_castps_pd(t.row[i + j]);
            __m512d high = _mm512_castps_pd(t.row[i + j + 2]);
            s->row[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            s->row[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    /* Row 4b+c now holds, in its 128-bit part p, column 4p+c of source rows 4b..4b+3. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512 ab_low = _mm512_shuffle_f32x4(s->row[c], s->row[4 + c], 0x44);
        __m512 ab_high = _mm512_shuffle_f32x4(s->row[c], s->row[4 + c], 0xee);
        __m512 cd_low = _mm512_shuffle_f32x4(s->row[8 + c], s->row[12 + c], 0x44);
        __m512 cd_high = _mm512_shuffle_f32x4(s->row[8 + c], s->row[12 + c], 0xee);
        t.row[c] = _mm512_shuffle_f32x4(ab_low, cd_low, 0x88);
        t.row[4 + c] = _mm512_shuffle_f32x4(ab_low, cd_low, 0xdd);
        t.row[8 + c] = _mm512_shuffle_f32x4(ab_high, cd_high, 0x88);
        t.row[12 + c] = _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd);
    }
    *s = t;
}

#endif
