/* Blocks of 6 x 64 and 12 x 32 f32 for few rows: weights are read as packed and widened in registers. Memory is fastest
 * when four strips are read at a time, so the flatter block is the first choice. */
#include "kernels/isa/avx512/block_avx512.h"
#include "kernels/isa/avx512/gemm_quant_avx512.h"

enum { FEW_MR = 6, FEW_STRIPS = 4, MR = 12, STRIPS = 2, STRIPS_MAX = 4, PREFETCH_BYTES = 1024 };
enum { PREFETCH_INPUTS = PREFETCH_BYTES / NMLP_LINE_BYTES * 2 }; /* bf16: a line holds two inputs of a strip */

/* Inputs are added one after the other, as in the other blocks: a row's bits do not depend on how many rows come with
 * it. One row alone waits for its own additions, but that is still faster than memory. */
INLINE void sum_bf16(const nmlp_gemm_microtile *p, extent e) {
    acc c;
    const float *a = p->a;
    const char *b = p->b;
    const char *far = b + PREFETCH_BYTES; /* at the end of the strips, the beginning of those that come next */
    size_t far_step = p->b_step;
    load_c(&c, p, e);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
        if (k + PREFETCH_INPUTS == p->k) {
            far = p->ahead;
            far_step = p->ahead_step;
        }
#pragma GCC unroll 2
        for (int kk = 0; kk < NMLP_STRIP; kk += 2, b += NMLP_LINE_BYTES, far += NMLP_LINE_BYTES) {
            __m512 first[STRIPS_MAX];
            __m512 second[STRIPS_MAX];
#pragma GCC unroll 4
            for (int s = 0; s < e.strips; s++) {
                const char *line = b + (size_t)s * p->b_step;
                first[s] = even_of(line);
                second[s] = odd_of(line);
                _mm_prefetch(far + (size_t)s * far_step, _MM_HINT_T0);
            }
            outer(&c, a + kk, first, e);
            outer(&c, a + kk + 1, second, e);
        }
        a = (const float *)((const char *)a + p->a_step);
    }
    store_c(&c, p, e);
}

INLINE void sum_f16(const nmlp_gemm_microtile *p, extent e) {
    acc c;
    const float *a = p->a;
    const char *b = p->b;
    load_c(&c, p, e);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
#pragma GCC unroll 2
        for (int kk = 0; kk < NMLP_STRIP; kk++, b += NMLP_LINE_BYTES / 2) {
            __m512 row[STRIPS_MAX];
#pragma GCC unroll 4
            for (int s = 0; s < e.strips; s++)
                row[s] = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(b + (size_t)s * p->b_step)));
            outer(&c, a + kk, row, e);
        }
        a = (const float *)((const char *)a + p->a_step);
    }
    store_c(&c, p, e);
}

INLINE void sum_of(const nmlp_gemm_microtile *p, nmlp_dtype dtype, extent e) {
    switch (dtype) {
    case NMLP_DTYPE_F32: sum_f32(p, e); return;
    case NMLP_DTYPE_BF16: sum_bf16(p, e); return;
    case NMLP_DTYPE_F16: sum_f16(p, e); return;
    case NMLP_DTYPE_Q8:
    case NMLP_DTYPE_Q4:
    case NMLP_DTYPE_Q4M: /* gemm_quant_avx512.h */
    case NMLP_DTYPE_FP8: /* packed as bf16 */
    case NMLP_DTYPE_Q6:  /* and these as Q8 */
    case NMLP_DTYPE_Q6M:
    case NMLP_DTYPE_Q5M: return;
    }
}

INLINE void dispatch_few(const nmlp_gemm_microtile *p, nmlp_dtype dtype, int strips) {
    enum { WIDTH = FEW_STRIPS * NMLP_STRIP };
    switch (p->rows) {
    case 1: sum_of(p, dtype, (extent){1, strips, WIDTH}); return;
    case 2: sum_of(p, dtype, (extent){2, strips, WIDTH}); return;
    case 3: sum_of(p, dtype, (extent){3, strips, WIDTH}); return;
    case 4: sum_of(p, dtype, (extent){4, strips, WIDTH}); return;
    case 5: sum_of(p, dtype, (extent){5, strips, WIDTH}); return;
    default: sum_of(p, dtype, (extent){FEW_MR, strips, WIDTH}); return;
    }
}

INLINE void few(const nmlp_gemm_microtile *p, nmlp_dtype dtype) {
    switch (p->strips) {
    case 1: dispatch_few(p, dtype, 1); return;
    case 2: dispatch_few(p, dtype, 2); return;
    default: dispatch_few(p, dtype, FEW_STRIPS); return;
    }
}

INLINE void narrow(const nmlp_gemm_microtile *p, nmlp_dtype dtype) {
    enum { WIDTH = STRIPS * NMLP_STRIP };
    switch (p->rows) {
    case 1: sum_of(p, dtype, (extent){1, STRIPS, WIDTH}); return;
    case 2: sum_of(p, dtype, (extent){2, STRIPS, WIDTH}); return;
    case 3: sum_of(p, dtype, (extent){3, STRIPS, WIDTH}); return;
    case 4: sum_of(p, dtype, (extent){4, STRIPS, WIDTH}); return;
    case 5: sum_of(p, dtype, (extent){5, STRIPS, WIDTH}); return;
    case 6: sum_of(p, dtype, (extent){6, STRIPS, WIDTH}); return;
    case 7: sum_of(p, dtype, (extent){7, STRIPS, WIDTH}); return;
    case 8: sum_of(p, dtype, (extent){8, STRIPS, WIDTH}); return;
    case 9: sum_of(p, dtype, (extent){9, STRIPS, WIDTH}); return;
    case 10: sum_of(p, dtype, (extent){10, STRIPS, WIDTH}); return;
    case 11: sum_of(p, dtype, (extent){11, STRIPS, WIDTH}); return;
    default: sum_of(p, dtype, (extent){MR, STRIPS, WIDTH}); return;
    }
}

static void few_f32(const nmlp_gemm_microtile *p) { few(p, NMLP_DTYPE_F32); }
static void few_bf16(const nmlp_gemm_microtile *p) { few(p, NMLP_DTYPE_BF16); }
static void few_f16(const nmlp_gemm_microtile *p) { few(p, NMLP_DTYPE_F16); }
static void narrow_f32(const nmlp_gemm_microtile *p) { narrow(p, NMLP_DTYPE_F32); }
static void narrow_bf16(const nmlp_gemm_microtile *p) { narrow(p, NMLP_DTYPE_BF16); }
static void narrow_f16(const nmlp_gemm_microtile *p) { narrow(p, NMLP_DTYPE_F16); }

const nmlp_gemm nmlp_gemm_few_avx512 = {
    .mr = FEW_MR,
    .strips = FEW_STRIPS,
    .elem_bytes = sizeof(float),
    .narrow_rows = INT32_MAX,
    .splits_blocks = true,
    .microkernel = {[NMLP_DTYPE_F32] = few_f32,
                    [NMLP_DTYPE_BF16] = few_bf16,
                    [NMLP_DTYPE_F16] = few_f16,
                    [NMLP_DTYPE_Q8] = nmlp_gemm_q8_64,
                    [NMLP_DTYPE_Q4] = nmlp_gemm_q4_64,
                    [NMLP_DTYPE_Q4M] = nmlp_gemm_q4m_64},
};

const nmlp_gemm nmlp_gemm_narrow_avx512 = {
    .mr = MR,
    .strips = STRIPS,
    .elem_bytes = sizeof(float),
    .narrow_rows = INT32_MAX,
    .microkernel = {[NMLP_DTYPE_F32] = narrow_f32,
                    [NMLP_DTYPE_BF16] = narrow_bf16,
                    [NMLP_DTYPE_F16] = narrow_f16,
                    [NMLP_DTYPE_Q8] = nmlp_gemm_q8_32,
                    [NMLP_DTYPE_Q4] = nmlp_gemm_q4_32,
                    [NMLP_DTYPE_Q4M] = nmlp_gemm_q4m_32},
};
