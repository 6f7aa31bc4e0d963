#include "kernels/isa/avx512/gemm_row_quant_avx512.h"
#include "kernels/isa/avx512/row_bytes_avx512.h"

enum { STRIPS_MAX = 4, PREFETCH_BYTES = 1024, LINES = 8, GROUP_BYTES = LINES * NMLP_LINE_BYTES };

/* Sums of a group in every strip: activations are 256 high + low, 0 <= low < 256. */
typedef struct halves {
    __m512i low[STRIPS_MAX];
    __m512i high[STRIPS_MAX];
} halves;

/* The sum of all words in each of them. */
INLINE __m512i sum_words(__m512i x) {
    x = _mm512_add_epi32(x, _mm512_shuffle_i64x2(x, x, 0x4e));
    x = _mm512_add_epi32(x, _mm512_shuffle_i64x2(x, x, 0xb1));
    x = _mm512_add_epi32(x, _mm512_shuffle_epi32(x, 0x4e));
    return _mm512_add_epi32(x, _mm512_shuffle_epi32(x, 0xb1));
}

/* Four inputs: codes are signed beside low bytes; beside high ones, which have a sign, 128 more than they are. */
INLINE void add_line(halves *c, const volatile int32_t *x, const char *b, size_t step, int line, int strips) {
    __m512i low = word(x, line / 2 * 4 + line % 2), high = word(x, line / 2 * 4 + 2 + line % 2);
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++) {
        __m512i codes = _mm512_load_si512(b + (size_t)s * step + line * NMLP_LINE_BYTES);
        c->low[s] = _mm512_dpbusd_epi32(c->low[s], low, codes);
        c->high[s] = _mm512_dpbusd_epi32(c->high[s], _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80)), high);
    }
}

/* What a group's sums begin with: what is too much in codes times the inputs, taken away. */
INLINE void begin_group(halves *c, __m512i bytes, int strips) {
    const __mmask16 high_words = 0xcccc;
    __m512i zero = _mm512_setzero_si512();
    __m512i excess = _mm512_maskz_dpbusd_epi32(high_words, zero, _mm512_set1_epi8((char)0x80), bytes);
    __m512i high = _mm512_sub_epi32(zero, sum_words(excess));
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++) {
        c->low[s] = zero;
        c->high[s] = high;
    }
}

INLINE void end_group(__m512 *sums, const halves *c, float x_scale, int strips) {
    __m512 scale = _mm512_set1_ps(x_scale);
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++) {
        __m512i whole = _mm512_add_epi32(c->low[s], _mm512_slli_epi32(c->high[s], 8));
        sums[s] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sums[s]);
    }
}

INLINE void fetch(const char *at, size_t step, int strips) {
#pragma GCC unroll 8
    for (int line = 0; line < LINES; line++)
#pragma GCC unroll 4
        for (int s = 0; s < strips; s++) _mm_prefetch(at + (size_t)s * step + line * NMLP_LINE_BYTES, _MM_HINT_T0);
}

INLINE void sum_strips(const nmlp_gemm_microtile *p, int strips) {
    _Alignas(NMLP_LINE_BYTES) int32_t words[NMLP_STRIP];
    __m512 sums[STRIPS_MAX];
    halves c;
    const char *a = p->a, *b = p->b;
    const char *far = b + PREFETCH_BYTES; /* at the end of the strips, the beginning of those that come next */
    size_t far_step = p->b_step;
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++)
        sums[s] = p->accumulate ? _mm512_load_ps(p->c + s * NMLP_STRIP) : _mm512_setzero_ps();
    for (int64_t k = 0; k < p->k; k += NMLP_PAD) {
        __m512i bytes = split_bytes(_mm512_load_si512(a), NMLP_DTYPE_Q8);
        if (p->ahead && k + PREFETCH_BYTES / GROUP_BYTES * NMLP_PAD == p->k) {
            far = p->ahead;
            far_step = p->ahead_step;
        }
        _mm512_store_si512(words, bytes);
        fetch(far, far_step, strips);
        begin_group(&c, bytes, strips);
#pragma GCC unroll 8
        for (int line = 0; line < LINES; line++) add_line(&c, words, b, p->b_step, line, strips);
        end_group(sums, &c, p->a_scales[k / NMLP_PAD], strips);
        a += p->a_step;
        b += GROUP_BYTES;
        far += GROUP_BYTES;
    }
#pragma GCC unroll 4
    for (int s = 0; s < strips; s++) _mm512_store_ps(p->c + s * NMLP_STRIP, sums[s]);
}

void nmlp_gemm_row_q8_avx512vnni(const nmlp_gemm_microtile *p) {
    switch (p->strips) {
    case 1: sum_strips(p, 1); return;
    case 2: sum_strips(p, 2); return;
    default: sum_strips(p, STRIPS_MAX); return;
    }
}
