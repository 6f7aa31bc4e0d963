/* Blocks of 12 x 32 f32 for few rows: weights are read as packed and widened in registers. */
#include "kernels/block_avx512.h"

enum { MR = 12, STRIPS = 2, WIDTH = STRIPS * NMLP_STRIP, PREFETCH_BYTES = 2048 };

/* Inputs are added one after the other, as in the other blocks: a row's bits do not depend on how many rows come with
 * it. One row alone waits for its own additions, but that is still three times faster than memory. */
INLINE void sum_bf16(const nmlp_block *p, extent e) {
    acc c;
    const float *a = p->a;
    const char *b = p->b;
    load_c(&c, p, e);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
#pragma GCC unroll 2
        for (int kk = 0; kk < NMLP_STRIP; kk += 2, b += NMLP_LINE_BYTES) {
            const char *b1 = b + p->b_step;
            __m512 first[STRIPS] = {even_of(b), even_of(b1)};
            __m512 second[STRIPS] = {odd_of(b), odd_of(b1)};
            _mm_prefetch(b + PREFETCH_BYTES, _MM_HINT_T0);
            _mm_prefetch(b1 + PREFETCH_BYTES, _MM_HINT_T0);
            outer(&c, a + kk, first, e);
            outer(&c, a + kk + 1, second, e);
        }
        a = (const float *)((const char *)a + p->a_step);
    }
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
            __m512 row[STRIPS] = {_mm512_cvtph_ps(_mm256_load_si256((const __m256i *)b)),
                                  _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(b + p->b_step)))};
            outer(&c, a + kk, row, e);
        }
        a = (const float *)((const char *)a + p->a_step);
    }
    store_c(&c, p, e);
}

INLINE void sum_of(const nmlp_block *p, nmlp_dtype dtype, int rows) {
    extent e = {rows, STRIPS, WIDTH};
    switch (dtype) {
    case NMLP_DTYPE_F32: sum_f32(p, e); return;
    case NMLP_DTYPE_BF16: sum_bf16(p, e); return;
    case NMLP_DTYPE_F16: sum_f16(p, e); return;
    }
}

INLINE void dispatch(const nmlp_block *p, nmlp_dtype dtype) {
    switch (p->rows) {
    case 1: sum_of(p, dtype, 1); return;
    case 2: sum_of(p, dtype, 2); return;
    case 3: sum_of(p, dtype, 3); return;
    case 4: sum_of(p, dtype, 4); return;
    case 5: sum_of(p, dtype, 5); return;
    case 6: sum_of(p, dtype, 6); return;
    case 7: sum_of(p, dtype, 7); return;
    case 8: sum_of(p, dtype, 8); return;
    case 9: sum_of(p, dtype, 9); return;
    case 10: sum_of(p, dtype, 10); return;
    case 11: sum_of(p, dtype, 11); return;
    default: sum_of(p, dtype, MR); return;
    }
}

static void block_f32(const nmlp_block *p) { dispatch(p, NMLP_DTYPE_F32); }
static void block_bf16(const nmlp_block *p) { dispatch(p, NMLP_DTYPE_BF16); }
static void block_f16(const nmlp_block *p) { dispatch(p, NMLP_DTYPE_F16); }

const nmlp_gemm nmlp_gemm_narrow_avx512 = {
    .mr = MR,
    .strips = STRIPS,
    .elem_bytes = sizeof(float),
    .narrow_rows = INT32_MAX,
    .block = {[NMLP_DTYPE_F32] = block_f32, [NMLP_DTYPE_BF16] = block_bf16, [NMLP_DTYPE_F16] = block_f16},
};
