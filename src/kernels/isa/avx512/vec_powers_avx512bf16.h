/* Probabilities in bf16 by table: half the instructions of a polynomial. Part of vec_softmax_body.h. */
#ifndef NMLP_KERNELS_ISA_AVX512_VEC_POWERS_AVX512BF16_H
#define NMLP_KERNELS_ISA_AVX512_VEC_POWERS_AVX512BF16_H

/* A number's bf16 pattern, read as an integer, is 128 times its logarithm where it is a power of two, and too large by
 * this between them: for every second of 128 steps. */
static const uint8_t above_logarithm[64] = {0,  1,  1,  2,  2,  3,  4,  4,  5,  5,  5,  6,  6,  7,  7,  8,
                                            8,  8,  9,  9,  9,  9,  10, 10, 10, 10, 10, 11, 11, 11, 11, 11,
                                            11, 11, 11, 11, 11, 11, 11, 11, 11, 10, 10, 10, 10, 10, 9,  9,
                                            9,  8,  8,  8,  7,  7,  6,  6,  5,  5,  4,  3,  3,  2,  1,  1};

/* 32 probabilities as bf16, from 128 times their logarithms; off by up to 0.75 %. Below 2^-126: zero. NaN, and what no
 * bf16 holds: NaN. */
static inline __m512i power_line(__m512 low, __m512 high, __m512i above) {
    const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512 most = _mm512_set1_ps(32767.0f); /* returned where the other one is NaN */
    __m512i a = _mm512_cvtps_epi32(_mm512_min_ps(low, most));
    __m512i b = _mm512_cvtps_epi32(_mm512_min_ps(high, most));
    __m512i steps = _mm512_permutexvar_epi64(in_order, _mm512_packs_epi32(a, b));
    steps = _mm512_max_epi16(steps, _mm512_setzero_si512());
    __m512i excess = _mm512_maskz_permutexvar_epi8(0x5555555555555555u, _mm512_srli_epi16(steps, 1), above);
    return _mm512_sub_epi16(steps, excess);
}

/* Writes a row's probabilities relative to `base` for the n keys it sees and returns their sum. */
static inline lanes put_probabilities(const nmlp_vec_softmax_rows *s, int64_t row, int64_t n, float base) {
    const float steps = 128.0f * 1.44269504f; /* of e */
    const __m512i above = _mm512_loadu_si512(above_logarithm);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    const __m512 scale = _mm512_set1_ps(s->scale * steps);
    const __m512 offset = _mm512_set1_ps(127 * 128 - base * steps);
    __m512 sum = _mm512_setzero_ps();
    const float *piece = s->scores + row * 2 * LANES;
    char *line = s->lines + row * 64;
    int64_t at = 0;
    for (; at < n; at += 2 * LANES, line += s->step, piece += s->block_stride) {
        __m512i p = power_line(_mm512_fmadd_ps(_mm512_load_ps(piece), scale, offset),
                               _mm512_fmadd_ps(_mm512_load_ps(piece + LANES), scale, offset), above);
        if (n - at < 2 * LANES) p = _mm512_maskz_mov_epi16((1u << (n - at)) - 1u, p);
        sum = _mm512_dpbf16_ps(sum, (__m512bh)p, ones);
        _mm512_store_si512(line, p);
    }
    for (; at < s->n_padded; at += 2 * LANES, line += s->step) _mm512_store_si512(line, _mm512_setzero_si512());
    return (lanes)sum;
}

#endif
