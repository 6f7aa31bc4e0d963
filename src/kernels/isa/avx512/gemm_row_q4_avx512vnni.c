#include "kernels/isa/avx512/gemm_row_quant_avx512.h"
#include "kernels/isa/avx512/row_bytes_avx512.h"

/* One strip after the other, front to back, is how memory answers fastest, with so much asked for ahead. */
enum { PREFETCH_BYTES = 8192, GROUP_BYTES = 256, GROUPS_MAX = 256 };

/* Sums of a group, of both bytes of the activations. */
typedef struct halves {
    __m512i low;
    __m512i high;
} halves;

/* Groups of the row as all strips meet them: bytes by which codes are multiplied, and what the sums begin with, to take
 * away what is too much in codes times the inputs. Q4M has two sums for a group, of 16 inputs each. */
typedef struct split_row {
    _Alignas(NMLP_LINE_BYTES) int32_t words[GROUPS_MAX][NMLP_STRIP];
    int32_t begin[GROUPS_MAX][2];
} split_row;

/* Codes are 8 more than they are: inputs times 8, those of Q4M 16 by 16. */
INLINE void split_group(split_row *row, int64_t at, __m512i x, nmlp_dtype dtype) {
    const __mmask16 first_words = 0x00ff;
    __m512i sums = _mm512_dpwssd_epi32(_mm512_setzero_si512(), x, _mm512_set1_epi16(-8));
    _mm512_store_si512(row->words[at], split_bytes(x, dtype));
    row->begin[at][0] =
        dtype == NMLP_DTYPE_Q4 ? _mm512_reduce_add_epi32(sums) : _mm512_mask_reduce_add_epi32(first_words, sums);
    row->begin[at][1] = dtype == NMLP_DTYPE_Q4 ? 0 : _mm512_mask_reduce_add_epi32((__mmask16)~first_words, sums);
}

INLINE halves begin_sums(int32_t begin) {
    return (halves){.low = _mm512_set1_epi32(begin), .high = _mm512_setzero_si512()};
}

INLINE __m512i whole(const halves *c) { return _mm512_add_epi32(c->low, _mm512_slli_epi32(c->high, 8)); }

/* Eight inputs: codes are 8 more than they are. */
INLINE void add_q4(halves *c, const volatile int32_t *x, const char *b, int line) {
    const __m512i low_bits = _mm512_set1_epi8(15), sign = _mm512_set1_epi8(8);
    enum { AND_XOR = 0x78 }; /* sign ^ (words & low_bits) */
    __m512i words = _mm512_load_si512(b + line * NMLP_LINE_BYTES);
    __m512i first = _mm512_ternarylogic_epi32(sign, words, low_bits, AND_XOR);
    __m512i second = _mm512_ternarylogic_epi32(sign, _mm512_srli_epi32(words, 4), low_bits, AND_XOR);
    c->low = _mm512_dpbusd_epi32(c->low, word(x, 4 * line), first);
    c->high = _mm512_dpbusd_epi32(c->high, first, word(x, 4 * line + 2));
    c->low = _mm512_dpbusd_epi32(c->low, word(x, 4 * line + 1), second);
    c->high = _mm512_dpbusd_epi32(c->high, second, word(x, 4 * line + 3));
}

INLINE __m512i sum_q4(const int32_t *x, const int32_t *begin, const char *b) {
    halves c = begin_sums(begin[0]);
#pragma GCC unroll 4
    for (int line = 0; line < 4; line++) add_q4(&c, x, b, line);
    return whole(&c);
}

/* Multipliers meet sums of 16 inputs, which are fewer than codes; both ways are exact. */
INLINE __m512i sum_q4m(const int32_t *x, const int32_t *begin, const char *b, const int8_t *multipliers) {
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const __m128i *bytes = (const __m128i *)(const void *)(multipliers + half * NMLP_STRIP);
        halves c = begin_sums(begin[half]);
        add_q4(&c, x, b, 2 * half);
        add_q4(&c, x, b, 2 * half + 1);
        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(whole(&c), _mm512_cvtepi8_epi32(_mm_loadu_si128(bytes))));
    }
    return sum;
}

/* What is read PREFETCH_BYTES later: the strips side by side as one stream, then those that come next. */
typedef struct stream {
    const char *at;
    int64_t left_bytes; /* of these strips */
    const char *next;
} stream;

INLINE void fetch(stream *far, int64_t bytes) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < bytes; i += NMLP_LINE_BYTES) _mm_prefetch(far->at + i, _MM_HINT_T0);
    far->at += bytes;
    far->left_bytes -= bytes;
    if (far->left_bytes > 0 || !far->next) return;
    far->at = far->next;
    far->next = NULL;
}

static stream stream_of(const nmlp_gemm_microtile *p) {
    int64_t bytes = (int64_t)p->b_step * p->strips;
    const char *b = p->b;
    if (bytes > PREFETCH_BYTES)
        return (stream){.at = b + PREFETCH_BYTES, .left_bytes = bytes - PREFETCH_BYTES, .next = p->ahead};
    return (stream){.at = p->ahead ? p->ahead : b, .left_bytes = bytes};
}

/* Inputs from..from+32*n_groups of a strip. */
INLINE __m512 sum_strip(const nmlp_gemm_microtile *p, const split_row *row, int64_t from, int64_t n_groups,
                        const char *strip, __m512 sum, stream *far, nmlp_dtype dtype) {
    const int64_t numbers_bytes = (int64_t)p->span.bytes - NMLP_SPAN / NMLP_PAD * GROUP_BYTES;
    const char *span = strip + (size_t)(from / NMLP_SPAN) * p->span.bytes;
    for (int64_t i = 0; i < n_groups; i++) {
        const char *b = span + i % (NMLP_SPAN / NMLP_PAD) * GROUP_BYTES;
        const int32_t *x = row->words[i], *begin = row->begin[i];
        __m512 scale = _mm512_set1_ps(p->a_scales[from / NMLP_PAD + i]);
        __m512i group;
        fetch(far, GROUP_BYTES);
        if (dtype == NMLP_DTYPE_Q4M) {
            group = sum_q4m(x, begin, b, nmlp_gemm_span_per_group(&p->span, span, i * NMLP_PAD));
        } else {
            const char *scales = nmlp_gemm_span_scales(&p->span, span, i * NMLP_PAD);
            group = sum_q4(x, begin, b);
            scale = _mm512_mul_ps(scale, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)scales)));
        }
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(group), scale, sum);
        if ((i + 1) % (NMLP_SPAN / NMLP_PAD) != 0) continue;
        span += p->span.bytes;
        fetch(far, numbers_bytes);
    }
    return sum;
}

INLINE void sum_row(const nmlp_gemm_microtile *p, nmlp_dtype dtype) {
    split_row row;
    stream far = stream_of(p);
    for (int64_t from = 0; from < p->k; from += GROUPS_MAX * NMLP_PAD) {
        int64_t left = (p->k - from) / NMLP_PAD, n_groups = left < GROUPS_MAX ? left : GROUPS_MAX;
        const char *a = (const char *)p->a + (size_t)(from / NMLP_PAD) * p->a_step;
        for (int64_t i = 0; i < n_groups; i++, a += p->a_step) split_group(&row, i, _mm512_load_si512(a), dtype);
        for (int s = 0; s < p->strips; s++) {
            float *c = p->c + s * NMLP_STRIP;
            __m512 sum = p->accumulate || from > 0 ? _mm512_load_ps(c) : _mm512_setzero_ps();
            const char *strip = (const char *)p->b + (size_t)s * p->b_step;
            _mm512_store_ps(c, sum_strip(p, &row, from, n_groups, strip, sum, &far, dtype));
        }
    }
}

void nmlp_gemm_row_q4_avx512vnni(const nmlp_gemm_microtile *p) { sum_row(p, NMLP_DTYPE_Q4); }
void nmlp_gemm_row_q4m_avx512vnni(const nmlp_gemm_microtile *p) { sum_row(p, NMLP_DTYPE_Q4M); }
