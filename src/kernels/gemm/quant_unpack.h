/* Strips of quantised weights (gemm.h) read in plain C. */
#ifndef NMLP_KERNELS_GEMM_QUANT_UNPACK_H
#define NMLP_KERNELS_GEMM_QUANT_UNPACK_H

#include "kernels/gemm/gemm.h"

/* Input k of output `column`, without scale and multiplier; `codes` at the beginning of a span. */
static inline int nmlp_gemm_quant_code(const char *codes, nmlp_dtype dtype, int64_t k, int column) {
    static const int byte_of[4] = {0, 2, 1, 3};
    uint32_t word;
    if (dtype == NMLP_DTYPE_Q8) return (int8_t)codes[k / 4 * NMLP_LINE_BYTES + 4 * column + byte_of[k % 4]];
    memcpy(&word, codes + k / 8 * NMLP_LINE_BYTES + 4 * column, sizeof word);
    return (int)((word >> (k % 2 * 16 + k % 8 / 2 * 4) & 15) ^ 8) - 8;
}

/* The f16 scale of Q4 for input k of a span. */
static inline float nmlp_gemm_quant_scale(const nmlp_gemm_span *layout, const char *span, int64_t k, int column) {
    uint16_t half;
    memcpy(&half, nmlp_gemm_span_scales(layout, span, k) + sizeof half * (size_t)column, sizeof half);
    return nmlp_f16_to_f32(half);
}

/* k inputs to pairs of bf16: codes of Q8, and of Q4M times their multipliers, as they are, whose scale waits for
 * complete sums; those of Q4 times the scale of their group, rounded, because tile products have no place for it. */
static inline void nmlp_gemm_quant_unpack_bf16(void *dst, const nmlp_gemm_quant_strip *strip, int64_t k) {
    uint16_t *pairs = dst;
    for (int64_t i = 0; i < k; i++)
        for (int j = 0; j < NMLP_STRIP; j++) {
            const char *span = strip->spans + (size_t)(i / NMLP_SPAN) * strip->span.bytes;
            bool q4 = strip->dtype == NMLP_DTYPE_Q4;
            int number = strip->span.per_group_at ? nmlp_gemm_span_per_group(&strip->span, span, i)[j] : 0;
            float scale = q4                               ? nmlp_gemm_quant_scale(&strip->span, span, i, j)
                          : strip->dtype == NMLP_DTYPE_Q4M ? (float)number
                                                           : 1.0f;
            int code = nmlp_gemm_quant_code(span, strip->dtype, i % NMLP_SPAN, j) - (q4 ? number : 0);
            pairs[(i & ~(int64_t)1) * NMLP_STRIP + 2 * j + (i & 1)] = nmlp_f32_to_bf16((float)code * scale);
        }
}

#endif
