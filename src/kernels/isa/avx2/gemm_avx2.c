/* Blocks of 6 x 16 f32 in 12 AVX2 accumulators. */
#include <immintrin.h>

#include "kernels/isa/avx2/gemm_quant_avx2.h"

enum { MR = 6, HALVES = 2, LANES = 8, NARROW_ROWS = 12, PREFETCH_BYTES = 2048 };

typedef struct acc {
    __m256 v[MR][HALVES];
} acc;

/* One row of B: 16 columns. */
typedef struct row {
    __m256 v[HALVES];
} row;

#define INLINE static inline __attribute__((always_inline))

INLINE void load_c(acc *c, const nmlp_gemm_microtile *p, int rows) {
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++)
            c->v[i][h] = p->accumulate ? _mm256_load_ps(p->c + i * NMLP_STRIP + h * LANES) : _mm256_setzero_ps();
}

INLINE void store_c(const acc *c, const nmlp_gemm_microtile *p, int rows) {
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) _mm256_store_ps(p->c + i * NMLP_STRIP + h * LANES, c->v[i][h]);
}

INLINE void outer(acc *c, const float *a, row b, int rows) {
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        __m256 x = _mm256_broadcast_ss(a + i * NMLP_STRIP);
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) c->v[i][h] = _mm256_fmadd_ps(x, b.v[h], c->v[i][h]);
    }
}

INLINE row even_of(__m256i low, __m256i high) {
    return (row){{_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))}};
}

INLINE row odd_of(__m256i low, __m256i high) {
    const __m256i mask = _mm256_set1_epi32((int)0xffff0000);
    return (row){{_mm256_castsi256_ps(_mm256_and_si256(low, mask)), _mm256_castsi256_ps(_mm256_and_si256(high, mask))}};
}

INLINE row half_row(const char *b) {
    return (row){{_mm256_cvtph_ps(_mm_load_si128((const __m128i *)b)),
                  _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(b + 16)))}};
}

/* Inputs kk and kk+1. */
INLINE void pair_of(acc *c, const float *a, const char *b, nmlp_dtype dtype, int rows) {
    if (dtype == NMLP_DTYPE_BF16) {
        __m256i low = _mm256_load_si256((const __m256i *)b);
        __m256i high = _mm256_load_si256((const __m256i *)(b + 32));
        _mm_prefetch(b + PREFETCH_BYTES, _MM_HINT_T0);
        outer(c, a, even_of(low, high), rows);
        outer(c, a + 1, odd_of(low, high), rows);
    } else if (dtype == NMLP_DTYPE_F16) {
        _mm_prefetch(b + PREFETCH_BYTES, _MM_HINT_T0);
        outer(c, a, half_row(b), rows);
        outer(c, a + 1, half_row(b + 32), rows);
    } else {
        const float *f = (const float *)b;
        outer(c, a, (row){{_mm256_load_ps(f), _mm256_load_ps(f + 8)}}, rows);
        outer(c, a + 1, (row){{_mm256_load_ps(f + 16), _mm256_load_ps(f + 24)}}, rows);
    }
}

INLINE void rows_of(const nmlp_gemm_microtile *p, nmlp_dtype dtype, int rows) {
    const size_t pair_bytes = (dtype == NMLP_DTYPE_F32 ? 4 : 2) * 2 * NMLP_STRIP;
    acc c;
    const float *a = p->a;
    const char *b = p->b;
    load_c(&c, p, rows);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
#pragma GCC unroll 2
        for (int kk = 0; kk < NMLP_STRIP; kk += 2, b += pair_bytes) pair_of(&c, a + kk, b, dtype, rows);
        a = (const float *)((const char *)a + p->a_step);
    }
    store_c(&c, p, rows);
}

/* One copy of the loop per number of rows: the accumulators must be registers. */
INLINE void dispatch(const nmlp_gemm_microtile *p, nmlp_dtype dtype) {
    switch (p->rows) {
    case 1: rows_of(p, dtype, 1); return;
    case 2: rows_of(p, dtype, 2); return;
    case 3: rows_of(p, dtype, 3); return;
    case 4: rows_of(p, dtype, 4); return;
    case 5: rows_of(p, dtype, 5); return;
    default: rows_of(p, dtype, MR); return;
    }
}

static void block_f32(const nmlp_gemm_microtile *p) { dispatch(p, NMLP_DTYPE_F32); }
static void block_bf16(const nmlp_gemm_microtile *p) { dispatch(p, NMLP_DTYPE_BF16); }
static void block_f16(const nmlp_gemm_microtile *p) { dispatch(p, NMLP_DTYPE_F16); }

static void store_row(float *dst, row r) {
    _mm256_store_ps(dst, r.v[0]);
    _mm256_store_ps(dst + LANES, r.v[1]);
}

static void widen(float *dst, const void *src, nmlp_dtype dtype, int64_t n) {
    const char *from = src;
    for (int64_t i = 0; i < n; i += 2 * NMLP_STRIP, dst += 2 * NMLP_STRIP, from += NMLP_LINE_BYTES) {
        __m256i low = _mm256_load_si256((const __m256i *)from);
        __m256i high = _mm256_load_si256((const __m256i *)(from + 32));
        bool pairs = dtype == NMLP_DTYPE_BF16;
        store_row(dst, pairs ? even_of(low, high) : half_row(from));
        store_row(dst + NMLP_STRIP, pairs ? odd_of(low, high) : half_row(from + 32));
    }
}

const nmlp_gemm nmlp_gemm_avx2 = {
    .mr = MR,
    .strips = 1,
    .elem_bytes = sizeof(float),
    .narrow_rows = NARROW_ROWS,
    .microkernel = {[NMLP_DTYPE_F32] = block_f32,
                    [NMLP_DTYPE_BF16] = block_bf16,
                    [NMLP_DTYPE_F16] = block_f16,
                    [NMLP_DTYPE_Q8] = nmlp_gemm_q8_avx2,
                    [NMLP_DTYPE_Q4] = nmlp_gemm_q4_avx2,
                    [NMLP_DTYPE_Q4M] = nmlp_gemm_q4m_avx2},
    .widen = widen,
};
