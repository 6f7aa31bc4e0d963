#include "kernels/isa/avx512/gemm_quant_row_avx512.h"

#include <immintrin.h>

enum { STRIPS_MAX = 4, PREFETCH_BYTES = 1024, GROUP_BYTES_Q8 = 512, GROUP_BYTES_Q4 = 256, SCALES_AHEAD = 8 };

#define INLINE static inline __attribute__((always_inline))

/* Sums of a group in every strip: activations are 256 high + low, 0 <= low < 256. */
typedef struct halves {
    __m512i low[STRIPS_MAX];
    __m512i high[STRIPS_MAX];
} halves;

/* Low and high bytes of 32 int16, so that four of each meet the four codes of a word: per 8 inputs low, low, high,
 * high. Bytes of Q8 stand for inputs 0, 2, 1, 3, low halves of those of Q4 for 0, 4, 1, 5 and high ones for 2, 6, 3, 7.
 */
INLINE __m512i split_bytes(__m512i x, nmlp_dtype dtype) {
    const __m128i q8 = _mm_setr_epi8(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15);
    const __m128i q4 = _mm_setr_epi8(0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15);
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(dtype == NMLP_DTYPE_Q8 ? q8 : q4));
}

/* The sum of all words in each of them. */
INLINE __m512i sum_words(__m512i x) {
    x = _mm512_add_epi32(x, _mm512_shuffle_i64x2(x, x, 0x4e));
    x = _mm512_add_epi32(x, _mm512_shuffle_i64x2(x, x, 0xb1));
    x = _mm512_add_epi32(x, _mm512_shuffle_epi32(x, 0x4e));
    return _mm512_add_epi32(x, _mm512_shuffle_epi32(x, 0xb1));
}

/* Loads spread a word for free, where compilers would take it from the vector that was stored, by shuffles. */
INLINE __m512i word(const volatile int32_t *words, int at) { return _mm512_set1_epi32(words[at]); }

/* Four inputs: codes are signed beside low bytes; beside high ones, which have a sign, 128 more than they are. */
INLINE void add_q8(halves *c, const volatile int32_t *x, const char *b, size_t step, int line, int strips) {
    __m512i low = word(x, line / 2 * 4 + line % 2), high = word(x, line / 2 * 4 + 2 + line % 2);
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++) {
        __m512i codes = _mm512_load_si512(b + (size_t)s * step + line * NMLP_LINE_BYTES);
        c->low[s] = _mm512_dpbusd_epi32(c->low[s], low, codes);
        c->high[s] = _mm512_dpbusd_epi32(c->high[s], _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80)), high);
    }
}

/* Eight inputs: codes are 8 more than they are. */
INLINE void add_q4(halves *c, const volatile int32_t *x, const char *b, size_t step, int line, int strips) {
    const __m512i low_bits = _mm512_set1_epi8(15), sign = _mm512_set1_epi8(8);
    enum { AND_XOR = 0x78 }; /* sign ^ (words & low_bits) */
    __m512i low[2] = {word(x, 4 * line), word(x, 4 * line + 1)};
    __m512i high[2] = {word(x, 4 * line + 2), word(x, 4 * line + 3)};
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++) {
        __m512i words = _mm512_load_si512(b + (size_t)s * step + line * NMLP_LINE_BYTES);
        __m512i first = _mm512_ternarylogic_epi32(sign, words, low_bits, AND_XOR);
        __m512i second = _mm512_ternarylogic_epi32(sign, _mm512_srli_epi32(words, 4), low_bits, AND_XOR);
        c->low[s] = _mm512_dpbusd_epi32(c->low[s], low[0], first);
        c->high[s] = _mm512_dpbusd_epi32(c->high[s], first, high[0]);
        c->low[s] = _mm512_dpbusd_epi32(c->low[s], low[1], second);
        c->high[s] = _mm512_dpbusd_epi32(c->high[s], second, high[1]);
    }
}

/* What a group's sums begin with: what is too much in codes times the inputs, taken away. */
INLINE void begin_group(halves *c, __m512i x, __m512i bytes, nmlp_dtype dtype, int strips) {
    const __mmask16 high_words = 0xcccc;
    __m512i zero = _mm512_setzero_si512(), low = zero, high = zero;
    if (dtype == NMLP_DTYPE_Q8)
        high = _mm512_sub_epi32(
            zero, sum_words(_mm512_maskz_dpbusd_epi32(high_words, zero, _mm512_set1_epi8((char)0x80), bytes)));
    else
        low = sum_words(_mm512_dpwssd_epi32(zero, x, _mm512_set1_epi16(-8)));
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++) {
        c->low[s] = low;
        c->high[s] = high;
    }
}

INLINE void end_group(__m512 *sums, const halves *c, float x_scale, const char *scales, size_t step, nmlp_dtype dtype,
                      int strips) {
    __m512 x = _mm512_set1_ps(x_scale);
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++) {
        __m512 scale = x;
        if (dtype == NMLP_DTYPE_Q4)
            scale = _mm512_mul_ps(
                x, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(scales + (size_t)s * step))));
        __m512i whole = _mm512_add_epi32(c->low[s], _mm512_slli_epi32(c->high[s], 8));
        sums[s] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sums[s]);
    }
}

INLINE void fetch(const char *at, size_t step, int n_lines, int strips) {
#pragma GCC unroll 8
    for (int line = 0; line < n_lines; line++)
#pragma GCC unroll 4
        for (int s = 0; s < strips; s++) _mm_prefetch(at + (size_t)s * step + line * NMLP_LINE_BYTES, _MM_HINT_T0);
}

/* Where the codes lie that are read PREFETCH_BYTES later, and scales as many groups later: at the end of the strips, at
 * the beginning of those that come next. */
typedef struct coming {
    const char *codes;
    const char *scales;
    size_t step;
} coming;

INLINE void fetch_group(coming *far, const nmlp_gemm_microtile *p, int64_t k, nmlp_dtype dtype, int strips) {
    const int bytes = dtype == NMLP_DTYPE_Q8 ? GROUP_BYTES_Q8 : GROUP_BYTES_Q4;
    if (p->ahead && k + PREFETCH_BYTES / bytes * NMLP_PAD == p->k) {
        far->codes = p->ahead;
        far->step = p->ahead_step;
    }
    fetch(far->codes, far->step, bytes / NMLP_LINE_BYTES, strips);
    far->codes += bytes;
    if (dtype != NMLP_DTYPE_Q4) return;
    if (p->ahead && k + SCALES_AHEAD * NMLP_PAD == p->k) far->scales = p->ahead + (p->scales - (const char *)p->b);
    fetch(far->scales, far->step, 1, strips);
    far->scales += NMLP_PAD * NMLP_STRIP * 2 / p->group;
}

INLINE void sum_strips(const nmlp_gemm_microtile *p, nmlp_dtype dtype, int strips) {
    const int n_lines = (dtype == NMLP_DTYPE_Q8 ? GROUP_BYTES_Q8 : GROUP_BYTES_Q4) / NMLP_LINE_BYTES;
    _Alignas(NMLP_LINE_BYTES) int32_t words[NMLP_STRIP];
    __m512 sums[STRIPS_MAX];
    halves c;
    const char *a = p->a, *b = p->b;
    coming far = {.codes = b + PREFETCH_BYTES, .step = p->b_step};
    if (dtype == NMLP_DTYPE_Q4) far.scales = p->scales + SCALES_AHEAD * NMLP_PAD * NMLP_STRIP * 2 / p->group;
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++)
        sums[s] = p->accumulate ? _mm512_load_ps(p->c + s * NMLP_STRIP) : _mm512_setzero_ps();
    for (int64_t k = 0; k < p->k; k += NMLP_PAD) {
        __m512i x = _mm512_load_si512(a);
        __m512i bytes = split_bytes(x, dtype);
        const char *scales = dtype == NMLP_DTYPE_Q4 ? p->scales + k / p->group * NMLP_STRIP * 2 : NULL;
        _mm512_store_si512(words, bytes);
        fetch_group(&far, p, k, dtype, strips);
        begin_group(&c, x, bytes, dtype, strips);
#pragma GCC unroll 8
        for (int line = 0; line < n_lines; line++)
            (dtype == NMLP_DTYPE_Q8 ? add_q8 : add_q4)(&c, words, b, p->b_step, line, strips);
        end_group(sums, &c, p->a_scales[k / NMLP_PAD], scales, p->b_step, dtype, strips);
        a += p->a_step;
        b += n_lines * NMLP_LINE_BYTES;
    }
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++) _mm512_store_ps(p->c + s * NMLP_STRIP, sums[s]);
}

INLINE void sum_row(const nmlp_gemm_microtile *p, nmlp_dtype dtype) {
    switch (p->strips) {
    case 1: sum_strips(p, dtype, 1); return;
    case 2: sum_strips(p, dtype, 2); return;
    default: sum_strips(p, dtype, STRIPS_MAX); return;
    }
}

void nmlp_gemm_row_q8_avx512vnni(const nmlp_gemm_microtile *p) { sum_row(p, NMLP_DTYPE_Q8); }
void nmlp_gemm_row_q4_avx512vnni(const nmlp_gemm_microtile *p) { sum_row(p, NMLP_DTYPE_Q4); }
