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

/* One group of 32 inputs of one column, for all rows: its sum is exact in int32. */
static void quant_group(const nmlp_gemm_microtile *p, nmlp_dtype dtype, int64_t k, int column) {
    const int64_t rows_laid_out = (int64_t)(p->a_step / NMLP_LINE_BYTES);
    const char *span = (const char *)p->b + (size_t)(k / NMLP_SPAN) * p->span.bytes;
    float w_scale = dtype == NMLP_DTYPE_Q4 ? nmlp_gemm_quant_scale(&p->span, span, k, column) : 1.0f;
    int codes[NMLP_PAD];
    for (int i = 0; i < NMLP_PAD; i++) {
        int number = p->span.per_group_at ? nmlp_gemm_span_per_group(&p->span, span, k + i)[column] : 0;
        codes[i] = nmlp_gemm_quant_code(span, dtype, (k + i) % NMLP_SPAN, column);
        codes[i] = dtype == NMLP_DTYPE_Q4M ? codes[i] * number : codes[i] - number;
    }
    for (int row = 0; row < p->rows; row++) {
        int64_t at = k / NMLP_PAD * rows_laid_out + row;
        const int16_t *x = (const int16_t *)p->a + at * NMLP_PAD;
        int32_t sum = 0;
        for (int i = 0; i < NMLP_PAD; i++) sum += x[i] * codes[i];
        p->c[row * NMLP_STRIP + column] += (float)sum * (p->a_scales[at] * w_scale);
    }
}

static void quant_rows(const nmlp_gemm_microtile *p, nmlp_dtype dtype) {
    if (!p->accumulate) memset(p->c, 0, (size_t)p->rows * NMLP_STRIP * sizeof *p->c);
    for (int column = 0; column < NMLP_STRIP; column++)
        for (int64_t k = 0; k < p->k; k += NMLP_PAD) quant_group(p, dtype, k, column);
}

static void block_q8(const nmlp_gemm_microtile *p) { quant_rows(p, NMLP_DTYPE_Q8); }
static void block_q4(const nmlp_gemm_microtile *p) { quant_rows(p, NMLP_DTYPE_Q4); }
static void block_q4m(const nmlp_gemm_microtile *p) { quant_rows(p, NMLP_DTYPE_Q4M); }

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
    .microkernel = {[NMLP_DTYPE_F32] = block_f32,
                    [NMLP_DTYPE_Q8] = block_q8,
                    [NMLP_DTYPE_Q4] = block_q4,
                    [NMLP_DTYPE_Q4M] = block_q4m},
    .widen = widen,
};
