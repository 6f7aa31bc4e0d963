/* Blocks in plain C: 4 x 16 f32, weights always widened first. */
#include <string.h>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/quant_unpack.h"

enum { MR = 4 };

static inline void block_rows(const nmlp_gemm_microtile *p, int rows) {
    float acc[MR][NMLP_STRIP] = {{0}};
    const float *b = p->b;
    if (p->accumulate) memcpy(acc, p->c, (size_t)rows * sizeof acc[0]);
    for (int64_t k = 0; k < p->k; k += NMLP_STRIP) {
        const float *a = (const float *)((const char *)p->a + p->a_step * (size_t)(k / NMLP_STRIP));
        for (int kk = 0; kk < NMLP_STRIP; kk++, b += NMLP_STRIP)
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < NMLP_STRIP; j++) acc[i][j] += a[i * NMLP_STRIP + kk] * b[j];
    }
    memcpy(p->c, acc, (size_t)rows * sizeof acc[0]);
}

static void block_f32(const nmlp_gemm_microtile *p) {
    switch (p->rows) {
    case 1: block_rows(p, 1); return;
    case 2: block_rows(p, 2); return;
    case 3: block_rows(p, 3); return;
    default: block_rows(p, 4); return;
    }
}

/* Sums of a group of 32 inputs are exact in int32. */
static void quant_rows(const nmlp_gemm_microtile *p, nmlp_dtype dtype) {
    const int64_t rows_laid_out = (int64_t)(p->a_step / NMLP_LINE_BYTES);
    const uint16_t *w_scales = (const uint16_t *)(const void *)p->scales;
    for (int i = 0; i < p->rows; i++)
        for (int j = 0; j < NMLP_STRIP; j++) {
            float sum = p->accumulate ? p->c[i * NMLP_STRIP + j] : 0.0f;
            for (int64_t k = 0; k < p->k; k += NMLP_PAD) {
                int64_t at = k / NMLP_PAD * rows_laid_out + i;
                const int16_t *x = (const int16_t *)p->a + at * NMLP_PAD;
                float scale = p->a_scales[at];
                int32_t exact = 0;
                for (int kk = 0; kk < NMLP_PAD; kk++) exact += x[kk] * nmlp_gemm_quant_code(p->b, dtype, k + kk, j);
                if (dtype == NMLP_DTYPE_Q4) scale *= nmlp_f16_to_f32(w_scales[k / p->group * NMLP_STRIP + j]);
                sum += (float)exact * scale;
            }
            p->c[i * NMLP_STRIP + j] = sum;
        }
}

static void block_q8(const nmlp_gemm_microtile *p) { quant_rows(p, NMLP_DTYPE_Q8); }
static void block_q4(const nmlp_gemm_microtile *p) { quant_rows(p, NMLP_DTYPE_Q4); }

static void widen_pairs(float *dst, const uint16_t *src, int64_t n) {
    for (int64_t i = 0; i < n; i += 2 * NMLP_STRIP)
        for (int j = 0; j < NMLP_STRIP; j++) {
            dst[i + j] = nmlp_bf16_to_f32(src[i + 2 * j]);
            dst[i + NMLP_STRIP + j] = nmlp_bf16_to_f32(src[i + 2 * j + 1]);
        }
}

static void widen(float *dst, const void *src, nmlp_dtype dtype, int64_t n) {
    if (dtype == NMLP_DTYPE_BF16)
        widen_pairs(dst, src, n);
    else
        nmlp_to_f32(dst, src, dtype, (size_t)n);
}

const nmlp_gemm nmlp_gemm_ref = {
    .mr = MR,
    .strips = 1,
    .elem_bytes = sizeof(float),
    .microkernel = {[NMLP_DTYPE_F32] = block_f32, [NMLP_DTYPE_Q8] = block_q8, [NMLP_DTYPE_Q4] = block_q4},
    .widen = widen,
};
