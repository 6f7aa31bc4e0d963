/* Operands of tiles brought into order sixteen numbers at a time. Where an operand is transposed, pairs of neighbours
 * along k become one 32-bit word and blocks of 16 x 16 words are transposed. */
#ifndef NMLP_TRAIN_TILES_PACK_AVX512_H
#define NMLP_TRAIN_TILES_PACK_AVX512_H

#include <immintrin.h>

#include "kernels/isa/avx512/transpose_avx512.h"
#include "train/tiles_body.h"

static __mmask16 first_lanes(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

/* pair_rows: word i is low[i] and high[i] as bf16. narrow_halves: the sixteen of `low`, then those of `high`. */
#ifdef __AVX512BF16__

static inline __m512i pair_rows(__m512 low, __m512 high) {
    const __m512i in_pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(in_pairs, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

static inline __m512i narrow_halves(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

#else

/* bf16 in the upper half of each word; the lower half is whatever was left of rounding. */
static inline __m512i round_up_half(__m512 x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}

static inline __m512i pair_rows(__m512 low, __m512 high) {
    __m512i upper = _mm512_and_si512(round_up_half(high), _mm512_set1_epi32((int)0xffff0000u));
    return _mm512_or_si512(_mm512_srli_epi32(round_up_half(low), 16), upper);
}

static inline __m512i narrow_halves(__m512 low, __m512 high) {
    const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                                           25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(round_up_half(low), upper, round_up_half(high));
}

#endif

/* n of 32 numbers in a row as bf16, in order: word i holds numbers 2i and 2i+1. */
static inline __m512i narrow_row(const float *src, int64_t n) {
    if (n >= 32) return narrow_halves(_mm512_loadu_ps(src), _mm512_loadu_ps(src + 16));
    __m512 low = _mm512_maskz_loadu_ps(first_lanes(n), src);
    __m512 high = _mm512_maskz_loadu_ps(first_lanes(n - 16), n > 16 ? src + 16 : src);
    return narrow_halves(low, high);
}

static inline void transpose_words(__m512i w[16]) {
    nmlp_avx512_square s;
    for (int i = 0; i < 16; i++) s.row[i] = _mm512_castsi512_ps(w[i]);
    nmlp_avx512_transpose(&s);
    for (int i = 0; i < 16; i++) w[i] = _mm512_castps_si512(s.row[i]);
}

/* Sixteen pairs of rows of a [k,n] operand: word (pair, column). Pairs past k and columns past n are zeros. */
static inline void load_pairs(__m512i w[16], const float *src, int64_t ld, int64_t k, int64_t n) {
    __mmask16 columns = first_lanes(n);
    for (int64_t i = 0; i < 16; i++) {
        __m512 low = _mm512_setzero_ps();
        __m512 high = _mm512_setzero_ps();
        if (2 * i < k) low = _mm512_maskz_loadu_ps(columns, src + 2 * i * ld);
        if (2 * i + 1 < k) high = _mm512_maskz_loadu_ps(columns, src + (2 * i + 1) * ld);
        w[i] = pair_rows(low, high);
    }
}

/* Sixteen rows of an [n,k] operand: word (row, pair). */
static inline void load_rows(__m512i w[16], const float *src, int64_t ld, int64_t k, int64_t n) {
    for (int64_t i = 0; i < 16; i++) w[i] = i < n ? narrow_row(src + i * ld, k) : _mm512_setzero_si512();
}

static void pack_strip(uint16_t *dst, const nmlp_train_b_packing *g, int64_t first) {
    for (int64_t p = 0; p < g->b_rows; p += TILE_K, dst += TILE_K * NR) {
        for (int64_t j = 0; j < NR; j += 16) {
            __m512i w[16];
            int64_t columns = g->n - first - j;
            if (p >= g->k || columns <= 0) {
                for (int i = 0; i < 16; i++) w[i] = _mm512_setzero_si512();
            } else if (g->transposed) {
                load_rows(w, g->b + (first + j) * g->ldb + p, g->ldb, g->k - p, columns);
                transpose_words(w);
            } else {
                load_pairs(w, g->b + p * g->ldb + first + j, g->ldb, g->k - p, columns);
            }
            for (int i = 0; i < 16; i++) _mm512_storeu_si512(dst + i * 2 * NR + 2 * j, w[i]);
        }
    }
}

/* Row by row, so that memory is read in order. */
static void copy_rows(uint16_t *dst, const float *src, int64_t lda, int64_t m, int64_t k) {
    for (int64_t i = 0; i < MR; i++) {
        uint16_t *line = dst + i * TILE_K;
        for (int64_t p = 0; p < k; p += TILE_K, line += 2 * TILE_ELEMS)
            _mm512_storeu_si512(line, i < m ? narrow_row(src + i * lda + p, k - p) : _mm512_setzero_si512());
    }
}

static void copy_group(uint16_t *dst, const float *a, int64_t lda, bool transposed, int64_t m, int64_t k) {
    if (!transposed) {
        copy_rows(dst, a, lda, m, k);
        return;
    }
    for (int64_t p = 0; p < k; p += TILE_K) {
        for (int64_t i = 0; i < MR; i += 16, dst += TILE_ELEMS) {
            __m512i w[16];
            load_pairs(w, a + p * lda + (i < m ? i : 0), lda, i < m ? k - p : 0, m - i);
            transpose_words(w);
            for (int j = 0; j < 16; j++) _mm512_storeu_si512(dst + j * TILE_K, w[j]);
        }
    }
}

#endif
