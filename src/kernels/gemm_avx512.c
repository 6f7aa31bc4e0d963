/* Blocks of 6 x 64 f32 in 24 AVX-512 accumulators: 10 loads for 24 multiply-adds, where 12 x 32 takes 14 and is slower
 * as soon as anything else wants the load ports. */
#include <immintrin.h>

#include "kernels/gemm.h"

enum { MR = 6, STRIPS = 4, NR = STRIPS * NMLP_STRIP, NARROW_ROWS = 12, PREFETCH_BYTES = 2048 };

typedef struct acc {
    __m512 v[MR][STRIPS];
} acc;

/* Rows and strips of the block at hand, constants after inlining. */
typedef struct extent {
    int rows;
    int strips;
} extent;

#define INLINE static inline __attribute__((always_inline))

INLINE void load_c(acc *c, const nmlp_block *p, extent e) {
#pragma GCC unroll 6
    for (int i = 0; i < e.rows; i++)
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++)
            c->v[i][s] = p->accumulate ? _mm512_load_ps(p->c + i * NR + s * NMLP_STRIP) : _mm512_setzero_ps();
}

INLINE void store_c(const acc *c, const nmlp_block *p, extent e) {
#pragma GCC unroll 6
    for (int i = 0; i < e.rows; i++)
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) _mm512_store_ps(p->c + i * NR + s * NMLP_STRIP, c->v[i][s]);
}

INLINE void add_c(acc *c, const acc *more, extent e) {
#pragma GCC unroll 6
    for (int i = 0; i < e.rows; i++)
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) c->v[i][s] = _mm512_add_ps(c->v[i][s], more->v[i][s]);
}

/* c += one column of the tile times one row of B. */
INLINE void outer(acc *c, const float *a, const __m512 b[STRIPS], extent e) {
#pragma GCC unroll 6
    for (int i = 0; i < e.rows; i++) {
        __m512 x = _mm512_set1_ps(a[i * NMLP_STRIP]);
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) c->v[i][s] = _mm512_fmadd_ps(x, b[s], c->v[i][s]);
    }
}

INLINE void sum_f32(const nmlp_block *p, extent e) {
    acc c;
    const float *a = p->a;
    const float *b = p->b;
    const size_t step = p->b_step / sizeof *b;
    load_c(&c, p, e);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
#pragma GCC unroll 4
        for (int kk = 0; kk < NMLP_STRIP; kk++, b += NMLP_STRIP) {
            __m512 row[STRIPS];
#pragma GCC unroll 4
            for (int s = 0; s < e.strips; s++) row[s] = _mm512_load_ps(b + (size_t)s * step);
            outer(&c, a + kk, row, e);
        }
        a = (const float *)((const char *)a + p->a_step);
    }
    store_c(&c, p, e);
}

/* The two f32 rows in a line of bf16 pairs. */
INLINE __m512 even_of(const char *line) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_load_si512(line), 16));
}
INLINE __m512 odd_of(const char *line) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_load_si512(line), _mm512_set1_epi32((int)0xffff0000)));
}

/* Streams weights. Even and odd inputs have sums of their own while registers last: few rows would otherwise wait for
 * their own additions. */
INLINE void sum_bf16(const nmlp_block *p, extent e) {
    acc c;
    acc odd;
    const int split = e.rows <= 3;
    const float *a = p->a;
    const char *b = p->b;
    load_c(&c, p, e);
#pragma GCC unroll 6
    for (int i = 0; i < e.rows; i++)
#pragma GCC unroll 4
        for (int s = 0; s < e.strips; s++) odd.v[i][s] = _mm512_setzero_ps();
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
#pragma GCC unroll 2
        for (int kk = 0; kk < NMLP_STRIP; kk += 2, b += NMLP_LINE_BYTES) {
            __m512 row[STRIPS];
#pragma GCC unroll 4
            for (int s = 0; s < e.strips; s++) {
                const char *line = b + (size_t)s * p->b_step;
                row[s] = even_of(line);
                _mm_prefetch(line + PREFETCH_BYTES, _MM_HINT_T0);
            }
            outer(&c, a + kk, row, e);
#pragma GCC unroll 4
            for (int s = 0; s < e.strips; s++) row[s] = odd_of(b + (size_t)s * p->b_step);
            outer(split ? &odd : &c, a + kk + 1, row, e);
        }
        a = (const float *)((const char *)a + p->a_step);
    }
    if (split) add_c(&c, &odd, e);
    store_c(&c, p, e);
}

INLINE void sum_f16(const nmlp_block *p, extent e) {
    acc c;
    const float *a = p->a;
    const char *b = p->b;
    load_c(&c, p, e);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
#pragma GCC unroll 2
        for (int kk = 0; kk < NMLP_STRIP; kk++, b += NMLP_LINE_BYTES / 2) {
            __m512 row[STRIPS];
#pragma GCC unroll 4
            for (int s = 0; s < e.strips; s++)
                row[s] = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(b + (size_t)s * p->b_step)));
            outer(&c, a + kk, row, e);
        }
        a = (const float *)((const char *)a + p->a_step);
    }
    store_c(&c, p, e);
}

INLINE void sum_of(const nmlp_block *p, nmlp_dtype dtype, extent e) {
    switch (dtype) {
    case NMLP_DTYPE_F32: sum_f32(p, e); return;
    case NMLP_DTYPE_BF16: sum_bf16(p, e); return;
    case NMLP_DTYPE_F16: sum_f16(p, e); return;
    }
}

/* One copy of the loop per extent: the accumulators must be registers. */
INLINE void dispatch_rows(const nmlp_block *p, nmlp_dtype dtype, int strips) {
    switch (p->rows) {
    case 1: sum_of(p, dtype, (extent){1, strips}); return;
    case 2: sum_of(p, dtype, (extent){2, strips}); return;
    case 3: sum_of(p, dtype, (extent){3, strips}); return;
    case 4: sum_of(p, dtype, (extent){4, strips}); return;
    case 5: sum_of(p, dtype, (extent){5, strips}); return;
    default: sum_of(p, dtype, (extent){MR, strips}); return;
    }
}

INLINE void dispatch(const nmlp_block *p, nmlp_dtype dtype) {
    if (p->strips == STRIPS)
        dispatch_rows(p, dtype, STRIPS);
    else
        dispatch_rows(p, dtype, STRIPS / 2);
}

static void block_f32(const nmlp_block *p) { dispatch(p, NMLP_DTYPE_F32); }
static void block_bf16(const nmlp_block *p) { dispatch(p, NMLP_DTYPE_BF16); }
static void block_f16(const nmlp_block *p) { dispatch(p, NMLP_DTYPE_F16); }

static void widen(float *dst, const void *src, nmlp_dtype dtype, int64_t n) {
    const char *from = src;
    for (int64_t i = 0; i < n; i += 2 * NMLP_STRIP, dst += 2 * NMLP_STRIP, from += NMLP_LINE_BYTES) {
        if (dtype == NMLP_DTYPE_BF16) {
            _mm512_store_ps(dst, even_of(from));
            _mm512_store_ps(dst + NMLP_STRIP, odd_of(from));
        } else {
            _mm512_store_ps(dst, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)from)));
            _mm512_store_ps(dst + NMLP_STRIP, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(from + 32))));
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
