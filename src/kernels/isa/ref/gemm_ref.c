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
    .microkernel = {[NMLP_DTYPE_F32] = block_f32},
    .widen = widen,
    .unpack = nmlp_gemm_quant_unpack_f32,
};
