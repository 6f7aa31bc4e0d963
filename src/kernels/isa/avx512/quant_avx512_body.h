/* Micro-kernels for quantised weights: int16 activations times 8- or 4-bit codes, summed exactly in int32 over groups
 * of 32 inputs, then added to f32 with the scales. Included by files that define dot_pairs: sum + the products of the
 * two int16 of every word. The kernels of Q4 exist twice, with and without zero points;
 * those of Q4M multiply codes by the multipliers of their groups of 16 first. */
#ifndef NMLP_KERNELS_ISA_AVX512_QUANT_AVX512_BODY_H
#define NMLP_KERNELS_ISA_AVX512_QUANT_AVX512_BODY_H

#include <immintrin.h>

#include "kernels/gemm/gemm.h"

enum { SUMS_MAX = 12, STRIPS_MAX = 4, Q8_LINES = 8, Q4_LINES = 4 }; /* lines of 32 inputs */
enum { Q8_SPANS_AHEAD = 4, Q4_SPANS_AHEAD = 4 };

#define INLINE static inline __attribute__((always_inline))

/* Rows times strips: an f32 and an int32 sum of each are in registers. */
typedef struct extent {
    int rows;
    int strips;
    int width; /* floats between rows of C */
} extent;

typedef struct sums {
    __m512 f[SUMS_MAX];
    __m512i i[SUMS_MAX];
} sums;

INLINE void load_c(sums *c, const nmlp_gemm_microtile *p, int strip, extent e) {
#pragma GCC unroll 12
    for (int i = 0; i < e.rows; i++)
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++)
            c->f[i * e.strips + s] =
                p->accumulate ? _mm512_load_ps(p->c + i * e.width + (strip + s) * NMLP_STRIP) : _mm512_setzero_ps();
}

INLINE void store_c(const sums *c, const nmlp_gemm_microtile *p, int strip, extent e) {
#pragma GCC unroll 12
    for (int i = 0; i < e.rows; i++)
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++)
            _mm512_store_ps(p->c + i * e.width + (strip + s) * NMLP_STRIP, c->f[i * e.strips + s]);
}

/* Inputs 2*pair and 2*pair+1 of a group: every row's two activations times what codes hold of them. */
INLINE void add_pair(sums *c, const int32_t *a, int pair, const __m512i *codes, extent e) {
#pragma GCC unroll 12
    for (int i = 0; i < e.rows; i++) {
        __m512i x = _mm512_set1_epi32(a[i * NMLP_STRIP + pair]);
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) c->i[i * e.strips + s] = dot_pairs(c->i[i * e.strips + s], codes[s], x);
    }
}

/* Q4M: codes are multiplied by the multipliers of their 16 inputs, or, for one row, the sums of 16 inputs are, which
 * are fewer. Both are exact: the same bits. */
INLINE bool multiplies_sums(nmlp_dtype dtype, extent e) { return dtype == NMLP_DTYPE_Q4M && e.rows == 1; }

/* Of 16 inputs of every strip; for codes in both halves of the column's word. */
INLINE void load_multipliers(__m512i *multipliers, const int8_t *from, size_t step, extent e) {
#pragma GCC unroll 4
    for (int s = 0; s < e.strips; s++) {
        const __m128i *bytes = (const __m128i *)(const void *)(from + (size_t)s * step);
        __m512i words = _mm512_cvtepi8_epi32(_mm_loadu_si128(bytes));
        bool alone = multiplies_sums(NMLP_DTYPE_Q4M, e);
        multipliers[s] = alone ? words : _mm512_mask_blend_epi16(0xaaaaaaaau, words, _mm512_slli_epi32(words, 16));
    }
}

/* One row, behind the first and the second 16 inputs. */
INLINE void multiply_sums(sums *c, __m512i *first, const __m512i *multipliers, bool second, extent e) {
#pragma GCC unroll 4
    for (int s = 0; s < e.strips; s++) {
        __m512i product = _mm512_mullo_epi32(c->i[s], multipliers[s]);
        c->i[s] = second ? _mm512_add_epi32(first[s], product) : _mm512_setzero_si512();
        if (!second) first[s] = product;
    }
}

/* One line of every strip: four inputs of Q8, eight of Q4 and Q4M. */
INLINE void add_line(sums *c, const int32_t *a, const char *b, size_t step, const char *far, size_t far_step, int line,
                     const __m512i *multipliers, nmlp_dtype dtype, extent e) {
    __m512i words[STRIPS_MAX];
    __m512i codes[STRIPS_MAX];
#pragma GCC unroll 4
    for (int s = 0; s < e.strips; s++) {
        words[s] = _mm512_load_si512(b + (size_t)s * step + line * NMLP_LINE_BYTES);
        _mm_prefetch(far + (size_t)s * far_step + line * NMLP_LINE_BYTES, _MM_HINT_T0);
    }
    if (dtype == NMLP_DTYPE_Q8) {
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) codes[s] = _mm512_srai_epi16(_mm512_slli_epi16(words[s], 8), 8);
        add_pair(c, a, 2 * line, codes, e);
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) codes[s] = _mm512_srai_epi16(words[s], 8);
        add_pair(c, a, 2 * line + 1, codes, e);
        return;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) {
            codes[s] = _mm512_srai_epi16(i < 3 ? _mm512_slli_epi16(words[s], 12 - 4 * i) : words[s], 12);
            if (dtype == NMLP_DTYPE_Q4M && !multiplies_sums(dtype, e))
                codes[s] = _mm512_mullo_epi16(codes[s], multipliers[s]);
        }
        add_pair(c, a, 4 * line + i, codes, e);
    }
}

/* A group's exact sums to f32. */
INLINE void drain(sums *c, const float *x_scales, const __m512 *w_scales, nmlp_dtype dtype, extent e) {
#pragma GCC unroll 12
    for (int i = 0; i < e.rows; i++) {
        __m512 x = _mm512_set1_ps(x_scales[i]);
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) {
            __m512 scale = dtype == NMLP_DTYPE_Q4 ? _mm512_mul_ps(x, w_scales[s]) : x;
            int at = i * e.strips + s;
            c->f[at] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c->i[at]), scale, c->f[at]);
        }
    }
}

/* What a group's sums begin with: 0, or the product of zero points with the sum of the inputs, taken away. */
INLINE void begin_group(sums *c, const int8_t *zeros, size_t step, const int32_t *x_sums, extent e) {
#pragma GCC unroll 4
    for (int s = 0; s < e.strips; s++) {
        __m512i zero = _mm512_setzero_si512();
        if (zeros)
            zero = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(zeros + (size_t)s * step)));
#pragma GCC unroll 12
        for (int i = 0; i < e.rows; i++)
            c->i[i * e.strips + s] = zeros ? _mm512_mullo_epi32(zero, _mm512_set1_epi32(-x_sums[i])) : zero;
    }
}

/* The lines behind the codes of a span. */
INLINE void fetch_numbers(const char *far, size_t far_step, int64_t bytes, extent e) {
    for (int64_t at = 0; at < bytes; at += NMLP_LINE_BYTES)
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) _mm_prefetch(far + (size_t)s * far_step + at, _MM_HINT_T0);
}

/* Strips strip.. of the micro-tile, all inputs. */
INLINE void sum_strips(const nmlp_gemm_microtile *p, nmlp_dtype dtype, bool has_zeros, int strip, extent e) {
    const int n_lines = dtype == NMLP_DTYPE_Q8 ? Q8_LINES : Q4_LINES;
    const int64_t code_bytes = NMLP_SPAN / NMLP_PAD * n_lines * NMLP_LINE_BYTES;
    const int64_t spans_ahead = dtype == NMLP_DTYPE_Q8 ? Q8_SPANS_AHEAD : Q4_SPANS_AHEAD;
    sums c;
    const char *a = p->a;
    const char *b = (const char *)p->b + (size_t)strip * p->b_step;
    const char *span = b;
    const float *x_scales = p->a_scales;
    const int32_t *x_sums = p->a_sums;
    /* At the end of the strips, the beginning of those that come next. */
    const char *far = span + (size_t)spans_ahead * p->span.bytes;
    size_t far_step = p->b_step;
    load_c(&c, p, strip, e);
    for (int64_t k = 0; k < p->k; k += NMLP_PAD) {
        __m512 w_scales[STRIPS_MAX];
        __m512i multipliers[STRIPS_MAX], first[STRIPS_MAX];
        if (p->ahead && k + spans_ahead * NMLP_SPAN == p->k) {
            far = p->ahead + (size_t)strip * p->ahead_step;
            far_step = p->ahead_step;
        }
        if (dtype == NMLP_DTYPE_Q4) {
            const char *scales = nmlp_gemm_span_scales(&p->span, span, k);
#pragma GCC unroll 4
            for (int s = 0; s < e.strips; s++)
                w_scales[s] = _mm512_cvtph_ps(
                    _mm256_loadu_si256((const __m256i *)(const void *)(scales + (size_t)s * p->b_step)));
        }
        begin_group(&c, has_zeros ? nmlp_gemm_span_per_group(&p->span, span, k) : NULL, p->b_step, x_sums, e);
#pragma GCC unroll 8
        for (int line = 0; line < n_lines; line++) {
            if (dtype == NMLP_DTYPE_Q4M && line % 2 == 0)
                load_multipliers(multipliers, nmlp_gemm_span_per_group(&p->span, span, k + 8 * line), p->b_step, e);
            add_line(&c, (const int32_t *)(const void *)a, b, p->b_step, far, far_step, line, multipliers, dtype, e);
            if (multiplies_sums(dtype, e) && line % 2 == 1) multiply_sums(&c, first, multipliers, line == 3, e);
        }
        drain(&c, x_scales, w_scales, dtype, e);
        a += p->a_step;
        b += n_lines * NMLP_LINE_BYTES;
        far += n_lines * NMLP_LINE_BYTES;
        x_scales += p->a_step / NMLP_LINE_BYTES;
        if (has_zeros) x_sums += p->a_step / NMLP_LINE_BYTES;
        if (dtype == NMLP_DTYPE_Q8 || k % NMLP_SPAN != NMLP_SPAN - NMLP_PAD) continue;
        int64_t numbers_bytes = (int64_t)p->span.bytes - code_bytes;
        fetch_numbers(far, far_step, numbers_bytes, e);
        far += numbers_bytes;
        b += numbers_bytes;
        span = b;
    }
    store_c(&c, p, strip, e);
}

/* All strips, as many at a time as registers hold. */
INLINE void sum_rows(const nmlp_gemm_microtile *p, nmlp_dtype dtype, bool zeros, int rows, int at_once, int width) {
    int strip = 0;
    for (; strip + at_once <= p->strips; strip += at_once)
        sum_strips(p, dtype, zeros, strip, (extent){rows, at_once, width});
    for (; strip < p->strips; strip++) sum_strips(p, dtype, zeros, strip, (extent){rows, 1, width});
}

INLINE void sum_rows_of_tile(const nmlp_gemm_microtile *p, nmlp_dtype dtype, bool zeros, int width) {
    switch (p->rows) {
    case 1: sum_rows(p, dtype, zeros, 1, 4, width); return;
    case 2: sum_rows(p, dtype, zeros, 2, 4, width); return;
    case 3: sum_rows(p, dtype, zeros, 3, 4, width); return;
    case 4: sum_rows(p, dtype, zeros, 4, 2, width); return;
    case 5: sum_rows(p, dtype, zeros, 5, 2, width); return;
    case 6: sum_rows(p, dtype, zeros, 6, 2, width); return;
    case 7: sum_rows(p, dtype, zeros, 7, 1, width); return;
    case 8: sum_rows(p, dtype, zeros, 8, 1, width); return;
    case 9: sum_rows(p, dtype, zeros, 9, 1, width); return;
    case 10: sum_rows(p, dtype, zeros, 10, 1, width); return;
    case 11: sum_rows(p, dtype, zeros, 11, 1, width); return;
    default: sum_rows(p, dtype, zeros, 12, 1, width); return;
    }
}

/* `width` is the gemm's, in floats. */
INLINE void sum_tile(const nmlp_gemm_microtile *p, nmlp_dtype dtype, int width) {
    if (dtype == NMLP_DTYPE_Q4 && p->span.per_group_at)
        sum_rows_of_tile(p, dtype, true, width);
    else
        sum_rows_of_tile(p, dtype, false, width);
}

#endif
