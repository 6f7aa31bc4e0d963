/* Blocks of 12 x 32 f32 in 24 AVX-512 accumulators. */
#include <immintrin.h>

#include "kernels/gemm.h"

enum { MR = 12, STRIPS = 2, NR = STRIPS * NMLP_STRIP, NARROW_ROWS = 24, PREFETCH_BYTES = 2048 };

typedef struct acc {
    __m512 v[MR][STRIPS];
} acc;

#define INLINE static inline __attribute__((always_inline))

INLINE void load_c(acc *c, const nmlp_block *p, int rows) {
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int s = 0; s < STRIPS; s++)
            c->v[i][s] = p->accumulate ? _mm512_load_ps(p->c + i * NR + s * NMLP_STRIP) : _mm512_setzero_ps();
}

INLINE void store_c(const acc *c, const nmlp_block *p, int rows) {
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int s = 0; s < STRIPS; s++) _mm512_store_ps(p->c + i * NR + s * NMLP_STRIP, c->v[i][s]);
}

/* c += column kk of the tile times one row of B. */
INLINE void outer(acc *c, const float *a, const __m512 b[STRIPS], int rows) {
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        __m512 x = _mm512_set1_ps(a[i * NMLP_STRIP]);
#pragma GCC unroll 2
        for (int s = 0; s < STRIPS; s++) c->v[i][s] = _mm512_fmadd_ps(x, b[s], c->v[i][s]);
    }
}

INLINE void rows_f32(const nmlp_block *p, int rows) {
    acc c;
    const float *a = p->a;
    const float *b0 = p->b;
    const float *b1 = (const float *)((const char *)p->b + p->b_step);
    load_c(&c, p, rows);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
#pragma GCC unroll 4
        for (int kk = 0; kk < NMLP_STRIP; kk++) {
            __m512 b[STRIPS] = {_mm512_load_ps(b0 + kk * NMLP_STRIP), _mm512_load_ps(b1 + kk * NMLP_STRIP)};
            outer(&c, a + kk, b, rows);
        }
        a = (const float *)((const char *)a + p->a_step);
        b0 += NMLP_STRIP * NMLP_STRIP;
        b1 += NMLP_STRIP * NMLP_STRIP;
    }
    store_c(&c, p, rows);
}

/* The two f32 rows in a line of bf16 pairs. */
INLINE __m512 even_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
INLINE __m512 odd_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* Streams weights. Even and odd inputs have sums of their own while registers last: one row alone would otherwise
 * wait for its own additions. */
INLINE void rows_bf16(const nmlp_block *p, int rows) {
    acc c;
    acc odd;
    const int split = rows <= 6;
    const float *a = p->a;
    const char *b0 = p->b;
    const char *b1 = b0 + p->b_step;
    load_c(&c, p, rows);
    for (int i = 0; split && i < rows; i++)
        for (int s = 0; s < STRIPS; s++) odd.v[i][s] = _mm512_setzero_ps();
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
#pragma GCC unroll 2
        for (int kk = 0; kk < NMLP_STRIP; kk += 2) {
            __m512i pairs0 = _mm512_load_si512(b0 + kk * NMLP_STRIP * 2);
            __m512i pairs1 = _mm512_load_si512(b1 + kk * NMLP_STRIP * 2);
            _mm_prefetch(b0 + kk * NMLP_STRIP * 2 + PREFETCH_BYTES, _MM_HINT_T0);
            _mm_prefetch(b1 + kk * NMLP_STRIP * 2 + PREFETCH_BYTES, _MM_HINT_T0);
            __m512 first[STRIPS] = {even_of(pairs0), even_of(pairs1)};
            __m512 second[STRIPS] = {odd_of(pairs0), odd_of(pairs1)};
            outer(&c, a + kk, first, rows);
            outer(split ? &odd : &c, a + kk + 1, second, rows);
        }
        a = (const float *)((const char *)a + p->a_step);
        b0 += NMLP_STRIP * NMLP_STRIP * 2;
        b1 += NMLP_STRIP * NMLP_STRIP * 2;
    }
    for (int i = 0; split && i < rows; i++)
        for (int s = 0; s < STRIPS; s++) c.v[i][s] = _mm512_add_ps(c.v[i][s], odd.v[i][s]);
    store_c(&c, p, rows);
}

INLINE void rows_f16(const nmlp_block *p, int rows) {
    acc c;
    const float *a = p->a;
    const __m256i *b0 = p->b;
    const __m256i *b1 = (const __m256i *)((const char *)p->b + p->b_step);
    load_c(&c, p, rows);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
#pragma GCC unroll 2
        for (int kk = 0; kk < NMLP_STRIP; kk++) {
            __m512 b[STRIPS] = {_mm512_cvtph_ps(_mm256_load_si256(b0 + kk)),
                                _mm512_cvtph_ps(_mm256_load_si256(b1 + kk))};
            outer(&c, a + kk, b, rows);
        }
        a = (const float *)((const char *)a + p->a_step);
        b0 += NMLP_STRIP;
        b1 += NMLP_STRIP;
    }
    store_c(&c, p, rows);
}

INLINE void rows_of(const nmlp_block *p, nmlp_dtype dtype, int rows) {
    switch (dtype) {
    case NMLP_DTYPE_F32: rows_f32(p, rows); return;
    case NMLP_DTYPE_BF16: rows_bf16(p, rows); return;
    case NMLP_DTYPE_F16: rows_f16(p, rows); return;
    }
}

/* One copy of the loop per number of rows: the accumulators must be registers. */
INLINE void dispatch(const nmlp_block *p, nmlp_dtype dtype) {
    switch (p->rows) {
    case 1: rows_of(p, dtype, 1); return;
    case 2: rows_of(p, dtype, 2); return;
    case 3: rows_of(p, dtype, 3); return;
    case 4: rows_of(p, dtype, 4); return;
    case 5: rows_of(p, dtype, 5); return;
    case 6: rows_of(p, dtype, 6); return;
    case 7: rows_of(p, dtype, 7); return;
    case 8: rows_of(p, dtype, 8); return;
    case 9: rows_of(p, dtype, 9); return;
    case 10: rows_of(p, dtype, 10); return;
    case 11: rows_of(p, dtype, 11); return;
    default: rows_of(p, dtype, MR); return;
    }
}

static void block_f32(const nmlp_block *p) { dispatch(p, NMLP_DTYPE_F32); }
static void block_bf16(const nmlp_block *p) { dispatch(p, NMLP_DTYPE_BF16); }
static void block_f16(const nmlp_block *p) { dispatch(p, NMLP_DTYPE_F16); }

static void widen(float *dst, const void *src, nmlp_dtype dtype, int64_t n) {
    const char *from = src;
    for (int64_t i = 0; i < n; i += 2 * NMLP_STRIP, dst += 2 * NMLP_STRIP, from += NMLP_LINE_BYTES) {
        __m512i line = _mm512_load_si512(from);
        if (dtype == NMLP_DTYPE_BF16) {
            _mm512_store_ps(dst, even_of(line));
            _mm512_store_ps(dst + NMLP_STRIP, odd_of(line));
        } else {
            _mm512_store_ps(dst, _mm512_cvtph_ps(_mm512_castsi512_si256(line)));
            _mm512_store_ps(dst + NMLP_STRIP, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(line, 1)));
        }
    }
}

const nmlp_gemm nmlp_gemm_avx512 = {
    .mr = MR,
    .strips = STRIPS,
    .elem_bytes = sizeof(float),
    .narrow_rows = NARROW_ROWS,
    .block = {[NMLP_DTYPE_F32] = block_f32, [NMLP_DTYPE_BF16] = block_bf16, [NMLP_DTYPE_F16] = block_f16},
    .widen = widen,
};
