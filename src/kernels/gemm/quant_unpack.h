/* Strips of quantised weights (gemm.h) unpacked in plain C, for sets without instructions of their own for it. */
#ifndef NMLP_KERNELS_GEMM_QUANT_UNPACK_H
#define NMLP_KERNELS_GEMM_QUANT_UNPACK_H

#include "kernels/gemm/gemm.h"

/* Input k of output `column`, without its scale. */
static inline int nmlp_gemm_quant_code(const nmlp_gemm_quant_strip *strip, int64_t k, int column) {
    uint32_t word;
    if (strip->dtype == NMLP_DTYPE_Q8) return (int8_t)strip->codes[k / 4 * NMLP_LINE_BYTES + 4 * column + k % 4];
    memcpy(&word, strip->codes + k / 8 * NMLP_LINE_BYTES + 4 * column, sizeof word);
    return (int)((word >> (k % 8 * 4) & 15) ^ 8) - 8;
}

/* 16 values of input k. Q8 stays without its scale, which f32 sums are multiplied with. */
static inline void nmlp_gemm_quant_row(float values[NMLP_STRIP], const nmlp_gemm_quant_strip *strip, int64_t k) {
    const uint16_t *halves = (const uint16_t *)strip->scales;
    for (int j = 0; j < NMLP_STRIP; j++) {
        values[j] = (float)nmlp_gemm_quant_code(strip, k, j);
        if (strip->dtype == NMLP_DTYPE_Q4) values[j] *= nmlp_f16_to_f32(halves[k / strip->group * NMLP_STRIP + j]);
    }
}

static inline void nmlp_gemm_quant_unpack_f32(void *dst, const nmlp_gemm_quant_strip *strip, int64_t k) {
    for (int64_t i = 0; i < k; i++) nmlp_gemm_quant_row((float *)dst + i * NMLP_STRIP, strip, i);
}

/* To pairs of bf16, rounded, scales of Q8 included: tile products have no place for them. */
static inline void nmlp_gemm_quant_unpack_bf16(void *dst, const nmlp_gemm_quant_strip *strip, int64_t k) {
    const float *scales = (const float *)(const void *)strip->scales;
    uint16_t *pairs = dst;
    for (int64_t i = 0; i < k; i++) {
        float values[NMLP_STRIP];
        nmlp_gemm_quant_row(values, strip, i);
        for (int j = 0; j < NMLP_STRIP; j++) {
            float value = strip->dtype == NMLP_DTYPE_Q8 ? values[j] * scales[j] : values[j];
            pairs[(i & ~(int64_t)1) * NMLP_STRIP + 2 * j + (i & 1)] = nmlp_f32_to_bf16(value);
        }
    }
}

#endif
