#include "kernels/isa/avx512/quant_unpack_avx512bf16.h"

#include <immintrin.h>

/* Codes come from memory, once: asked for so far ahead. */
enum { AHEAD_BYTES = 4096, Q8_PER_LINE = 4, Q4_PER_LINE = 8 };

#define INLINE static inline __attribute__((always_inline))

/* ---- Q8: bytes of bf16 looked up by magnitude ---- */

struct q8_tables {
    __m512i low[2], high[2]; /* bytes of bf16(0..63) and bf16(64..127) */
};

static struct q8_tables make_q8_tables(void) {
    struct q8_tables tables;
    _Alignas(64) uint8_t low[128], high[128];
    for (int i = 0; i < 128; i++) {
        uint16_t bits = nmlp_f32_to_bf16((float)i);
        low[i] = (uint8_t)bits;
        high[i] = (uint8_t)(bits >> 8);
    }
    for (int i = 0; i < 2; i++) {
        tables.low[i] = _mm512_load_si512(low + 64 * i);
        tables.high[i] = _mm512_load_si512(high + 64 * i);
    }
    return tables;
}

/* 16 codes in bits `shift`.. of words to f32, whose low halves are then zero. */
INLINE __m512i q8_wide(__m512i words, int shift) {
    return (__m512i)_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24 - shift), 24));
}

/* Lines with a code of -128, whose magnitude has no place in the tables. */
__attribute__((noinline)) static void q8_line_wide(char *to, __m512i words) {
    _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(q8_wide(words, 0), 16), q8_wide(words, 16)));
    _mm512_store_si512(to + NMLP_LINE_BYTES,
                       _mm512_or_si512(_mm512_srli_epi32(q8_wide(words, 8), 16), q8_wide(words, 24)));
}

/* A word holds inputs 0 and 1 in the low bytes of its halves, 2 and 3 in the high ones: each pair is a line of bf16. */
INLINE void q8_line(char *to, __m512i words, const struct q8_tables *t) {
    const __m512i sign = _mm512_set1_epi8((char)0x80), low_byte = _mm512_set1_epi16(0xff);
    if (_mm512_cmpeq_epi8_mask(words, sign)) {
        q8_line_wide(to, words);
        return;
    }
    __m512i magnitude = _mm512_abs_epi8(words);
    __m512i low = _mm512_permutex2var_epi8(t->low[0], magnitude, t->low[1]);
    __m512i high = _mm512_permutex2var_epi8(t->high[0], magnitude, t->high[1]);
    high = _mm512_ternarylogic_epi32(high, words, sign, 0xf8); /* high | (words & sign) */
    __m512i first = _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 8), low, low_byte, 0xf8);
    __m512i second =
        _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8), high, low_byte, 0xf4); /* | (high & ~low_byte) */
    _mm512_store_si512(to, first);
    _mm512_store_si512(to + NMLP_LINE_BYTES, second);
}

static void unpack_q8(char *to, const nmlp_gemm_quant_strip *strip, int64_t k) {
    const struct q8_tables tables = make_q8_tables();
    const char *codes = strip->spans;
    for (int64_t i = 0; i < k; i += Q8_PER_LINE, codes += NMLP_LINE_BYTES, to += 2 * NMLP_LINE_BYTES) {
        _mm_prefetch(codes + AHEAD_BYTES, _MM_HINT_T0);
        q8_line(to, _mm512_load_si512(codes), &tables);
    }
}

/* ---- Q4: f32 looked up by code, times the scale, rounded ---- */

/* What a group's codes stand for: minus `zero`, times `scale`. */
struct q4_group {
    __m512 scale, zero;
};

INLINE __m512 q4_wide(__m512i words, int shift, __m512 values, const struct q4_group *group, bool zeros) {
    __m512 code = _mm512_permutexvar_ps(_mm512_srli_epi32(words, (unsigned)shift), values);
    return _mm512_mul_ps(zeros ? _mm512_sub_ps(code, group->zero) : code, group->scale);
}

/* Pair i of a line: inputs 2 i and 2 i + 1, codes in bits 4 i and 16 + 4 i of words. */
INLINE void q4_pair(char *to, __m512i words, int i, __m512 values, const struct q4_group *group, __m512i interleave,
                    bool zeros) {
    __m512bh halves = _mm512_cvtne2ps_pbh(q4_wide(words, 16 + 4 * i, values, group, zeros),
                                          q4_wide(words, 4 * i, values, group, zeros));
    _mm512_store_si512(to + i * NMLP_LINE_BYTES, _mm512_permutexvar_epi16(interleave, (__m512i)halves));
}

INLINE __m512 load_per_group(const nmlp_gemm_span *layout, const char *span, int64_t k) {
    const int8_t *at = nmlp_gemm_span_per_group(layout, span, k);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)));
}

/* Multipliers of Q4M are scales whose products with codes bf16 holds exactly. */
INLINE struct q4_group load_group(const nmlp_gemm_span *layout, const char *span, int64_t k, bool zeros,
                                  bool multiplied) {
    struct q4_group group = {.zero = zeros ? load_per_group(layout, span, k) : _mm512_setzero_ps()};
    const char *scales = nmlp_gemm_span_scales(layout, span, k);
    group.scale = multiplied ? load_per_group(layout, span, k)
                             : _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)scales));
    return group;
}

INLINE void unpack_q4(char *to, const nmlp_gemm_quant_strip *strip, int64_t k, bool zeros, bool multiplied) {
    enum { INPUTS = NMLP_QUANT_MULTIPLIER_GROUP }; /* the smallest group */
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    _Alignas(64) uint16_t order[32];
    for (int j = 0; j < 32; j++) order[j] = (uint16_t)(j / 2 + j % 2 * 16);
    const __m512i interleave = _mm512_load_si512(order);
    const char *span = strip->spans;
    for (int64_t first = 0; first < k; first += INPUTS) {
        struct q4_group group = load_group(&strip->span, span, first, zeros, multiplied);
        const char *codes = span + first % NMLP_SPAN / Q4_PER_LINE * NMLP_LINE_BYTES;
#pragma GCC unroll 2
        for (int i = 0; i < INPUTS; i += Q4_PER_LINE, codes += NMLP_LINE_BYTES, to += 4 * NMLP_LINE_BYTES) {
            __m512i words = _mm512_load_si512(codes);
            _mm_prefetch(codes + AHEAD_BYTES, _MM_HINT_T0);
#pragma GCC unroll 4
            for (int pair = 0; pair < 4; pair++) q4_pair(to, words, pair, values, &group, interleave, zeros);
        }
        if (first % NMLP_SPAN == NMLP_SPAN - INPUTS) span += strip->span.bytes;
    }
}

void nmlp_gemm_quant_unpack_avx512bf16(void *dst, const nmlp_gemm_quant_strip *strip, int64_t k) {
    if (strip->dtype == NMLP_DTYPE_Q8)
        unpack_q8(dst, strip, k);
    else if (strip->dtype == NMLP_DTYPE_Q4M)
        unpack_q4(dst, strip, k, false, true);
    else if (strip->span.per_group_at)
        unpack_q4(dst, strip, k, true, false);
    else
        unpack_q4(dst, strip, k, false, false);
}
