/* Quantised weights with AVX2: int16 activations times 8- or 4-bit codes, summed exactly in int32 over groups of 32
 * inputs, then added to f32 with the scales. Up to three rows take the 16 columns of a strip at once, more take 8. */
#include <immintrin.h>

#include "kernels/isa/avx2/gemm_quant_avx2.h"

enum { ROWS_MAX = 6, HALVES_MAX = 2, LANES = 8, PREFETCH_BYTES = 8192, HALF_BYTES = 32 };

#define INLINE static inline __attribute__((always_inline))

typedef struct sums {
    __m256 f[ROWS_MAX][HALVES_MAX];
    __m256i i[ROWS_MAX][HALVES_MAX];
} sums;

INLINE void add_pair(sums *c, const int32_t *a, int pair, const __m256i *codes, int rows, int halves) {
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        __m256i x = _mm256_set1_epi32(a[i * NMLP_STRIP + pair]);
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++) c->i[i][h] = _mm256_add_epi32(c->i[i][h], _mm256_madd_epi16(codes[h], x));
    }
}

/* Pair `at` of a line: of Q8 the low or the high bytes of 16 bits, of Q4 and Q4M one of their four codes. */
INLINE __m256i codes_of(__m256i words, int at, nmlp_dtype dtype) {
    if (dtype == NMLP_DTYPE_Q8) return _mm256_srai_epi16(at == 0 ? _mm256_slli_epi16(words, 8) : words, 8);
    return _mm256_srai_epi16(at < 3 ? _mm256_slli_epi16(words, 12 - 4 * at) : words, 12);
}

/* Q4M: multipliers of 16 inputs, each in both halves of its column's word. */
INLINE void load_multipliers(__m256i *multipliers, const int8_t *from, int halves) {
#pragma GCC unroll 2
    for (int h = 0; h < halves; h++) {
        __m256i words = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(from + h * LANES)));
        multipliers[h] = _mm256_blend_epi16(words, _mm256_slli_epi32(words, 16), 0xaa);
    }
}

INLINE void add_line(sums *c, const int32_t *a, const char *line, int first_pair, const __m256i *multipliers,
                     nmlp_dtype dtype, int rows, int halves) {
    const int n_pairs = dtype == NMLP_DTYPE_Q8 ? 2 : 4;
    __m256i words[HALVES_MAX];
    __m256i codes[HALVES_MAX];
#pragma GCC unroll 2
    for (int h = 0; h < halves; h++) words[h] = _mm256_load_si256((const __m256i *)(line + h * HALF_BYTES));
    _mm_prefetch(line + PREFETCH_BYTES, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int at = 0; at < n_pairs; at++) {
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++) {
            codes[h] = codes_of(words[h], at, dtype);
            if (dtype == NMLP_DTYPE_Q4M) codes[h] = _mm256_mullo_epi16(codes[h], multipliers[h]);
        }
        add_pair(c, a, first_pair + at, codes, rows, halves);
    }
}

INLINE void drain(sums *c, const float *x_scales, const char *w_scales, nmlp_dtype dtype, int rows, int halves) {
#pragma GCC unroll 2
    for (int h = 0; h < halves; h++) {
        __m256 w = _mm256_setzero_ps();
        if (dtype == NMLP_DTYPE_Q4) w = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(w_scales + h * 16)));
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            __m256 scale = _mm256_broadcast_ss(x_scales + i);
            if (dtype == NMLP_DTYPE_Q4) scale = _mm256_mul_ps(scale, w);
            c->f[i][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(c->i[i][h]), scale, c->f[i][h]);
        }
    }
}

/* What a group's sums begin with: 0, or the product of zero points with the sum of the inputs, taken away. */
INLINE void begin_group(sums *c, const int8_t *zeros, const int32_t *x_sums, int rows, int halves) {
#pragma GCC unroll 2
    for (int h = 0; h < halves; h++) {
        __m256i zero = _mm256_setzero_si256();
        if (zeros) zero = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(zeros + h * LANES)));
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++)
            c->i[i][h] = zeros ? _mm256_mullo_epi32(zero, _mm256_set1_epi32(-x_sums[i])) : zero;
    }
}

/* Columns 8*half.. of the strip. */
INLINE void sum_halves(const nmlp_gemm_microtile *p, nmlp_dtype dtype, bool has_zeros, int rows, int half, int halves) {
    const int n_lines = dtype == NMLP_DTYPE_Q8 ? 8 : 4;
    sums c;
    const char *a = p->a;
    const float *x_scales = p->a_scales;
    const int32_t *x_sums = p->a_sums;
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++)
            c.f[i][h] =
                p->accumulate ? _mm256_load_ps(p->c + i * NMLP_STRIP + (half + h) * LANES) : _mm256_setzero_ps();
    for (int64_t k = 0; k < p->k; k += NMLP_PAD) {
        const char *span = (const char *)p->b + (size_t)(k / NMLP_SPAN) * p->span.bytes;
        const char *b = span + k % NMLP_SPAN / NMLP_PAD * n_lines * NMLP_LINE_BYTES + half * HALF_BYTES;
        const char *w_scales = nmlp_gemm_span_scales(&p->span, span, k) + half * 16;
        begin_group(&c, has_zeros ? nmlp_gemm_span_per_group(&p->span, span, k) + half * LANES : NULL, x_sums, rows,
                    halves);
#pragma GCC unroll 4
        for (int line = 0; line < n_lines; line++, b += NMLP_LINE_BYTES) {
            __m256i multipliers[HALVES_MAX];
            if (dtype == NMLP_DTYPE_Q4M)
                load_multipliers(multipliers, nmlp_gemm_span_per_group(&p->span, span, k + 8 * line) + half * LANES,
                                 halves);
            add_line(&c, (const int32_t *)(const void *)a, b, line * (NMLP_STRIP / n_lines), multipliers, dtype, rows,
                     halves);
        }
        drain(&c, x_scales, w_scales, dtype, rows, halves);
        a += p->a_step;
        x_scales += p->a_step / NMLP_LINE_BYTES;
        if (has_zeros) x_sums += p->a_step / NMLP_LINE_BYTES;
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++) _mm256_store_ps(p->c + i * NMLP_STRIP + (half + h) * LANES, c.f[i][h]);
}

INLINE void sum_narrow(const nmlp_gemm_microtile *p, nmlp_dtype dtype, bool zeros, int rows) {
    for (int half = 0; half < HALVES_MAX; half++) sum_halves(p, dtype, zeros, rows, half, 1);
}

INLINE void sum_rows_of_tile(const nmlp_gemm_microtile *p, nmlp_dtype dtype, bool zeros) {
    switch (p->rows) {
    case 1: sum_halves(p, dtype, zeros, 1, 0, HALVES_MAX); return;
    case 2: sum_halves(p, dtype, zeros, 2, 0, HALVES_MAX); return;
    case 3: sum_halves(p, dtype, zeros, 3, 0, HALVES_MAX); return;
    case 4: sum_narrow(p, dtype, zeros, 4); return;
    case 5: sum_narrow(p, dtype, zeros, 5); return;
    default: sum_narrow(p, dtype, zeros, ROWS_MAX); return;
    }
}

INLINE void sum_tile(const nmlp_gemm_microtile *p, nmlp_dtype dtype) {
    if (dtype == NMLP_DTYPE_Q4 && p->span.per_group_at)
        sum_rows_of_tile(p, dtype, true);
    else
        sum_rows_of_tile(p, dtype, false);
}

void nmlp_gemm_q8_avx2(const nmlp_gemm_microtile *p) { sum_tile(p, NMLP_DTYPE_Q8); }
void nmlp_gemm_q4_avx2(const nmlp_gemm_microtile *p) { sum_tile(p, NMLP_DTYPE_Q4); }
void nmlp_gemm_q4m_avx2(const nmlp_gemm_microtile *p) { sum_tile(p, NMLP_DTYPE_Q4M); }
