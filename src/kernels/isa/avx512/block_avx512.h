/* What the AVX-512 blocks share: accumulators in registers. Everything is inlined into functions that know the extent,
 * so that all indices are constants. */
#ifndef NMLP_KERNELS_ISA_AVX512_BLOCK_AVX512_H
#define NMLP_KERNELS_ISA_AVX512_BLOCK_AVX512_H

#include <immintrin.h>

#include "kernels/gemm/gemm.h"

enum { ACCUMULATORS = 24 };

typedef struct acc {
    __m512 v[ACCUMULATORS]; /* [rows][strips] */
} acc;

typedef struct extent {
    int rows;
    int strips;
    int width; /* floats between rows of C */
} extent;

#define INLINE static inline __attribute__((always_inline))

INLINE void load_c(acc *c, const nmlp_gemm_microtile *p, extent e) {
#pragma GCC unroll 12
    for (int i = 0; i < e.rows; i++)
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++)
            c->v[i * e.strips + s] =
                p->accumulate ? _mm512_load_ps(p->c + i * e.width + s * NMLP_STRIP) : _mm512_setzero_ps();
}

INLINE void store_c(const acc *c, const nmlp_gemm_microtile *p, extent e) {
#pragma GCC unroll 12
    for (int i = 0; i < e.rows; i++)
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) _mm512_store_ps(p->c + i * e.width + s * NMLP_STRIP, c->v[i * e.strips + s]);
}

/* c += one column of the tile times one row of B. */
INLINE void outer(acc *c, const float *a, const __m512 *b, extent e) {
#pragma GCC unroll 12
    for (int i = 0; i < e.rows; i++) {
        __m512 x = _mm512_set1_ps(a[i * NMLP_STRIP]);
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) c->v[i * e.strips + s] = _mm512_fmadd_ps(x, b[s], c->v[i * e.strips + s]);
    }
}

/* The two f32 rows in a line of bf16 pairs. */
INLINE __m512 even_of(const char *line) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_load_si512(line), 16)); }
INLINE __m512 odd_of(const char *line) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_load_si512(line), _mm512_set1_epi32((int)0xffff0000)));
}

/* c += one column of the tile times one row of f32 strips. */
INLINE void step_f32(acc *c, const float *a, const float *b, size_t strip, extent e) {
    __m512 row[4];
#pragma GCC unroll 4
    for (int s = 0; s < e.strips; s++) row[s] = _mm512_load_ps(b + (size_t)s * strip);
    outer(c, a, row, e);
}

/* Two steps per turn: gcc leaves this loop as it stands, and one step is short of the loop's own work. */
INLINE void sum_f32(const nmlp_gemm_microtile *p, extent e) {
    acc c;
    const float *a = p->a;
    const float *b = p->b;
    const size_t strip = p->b_step / sizeof *b;
    load_c(&c, p, e);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
        for (int kk = 0; kk < NMLP_STRIP; kk += 2, b += 2 * NMLP_STRIP) {
            step_f32(&c, a + kk, b, strip, e);
            step_f32(&c, a + kk + 1, b + NMLP_STRIP, strip, e);
        }
        a = (const float *)((const char *)a + p->a_step);
    }
    store_c(&c, p, e);
}

#endif
