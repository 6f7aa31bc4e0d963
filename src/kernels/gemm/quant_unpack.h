/* Strips of quantised weights (gemm.h) read in plain C. */
#ifndef NMLP_KERNELS_GEMM_QUANT_UNPACK_H
#define NMLP_KERNELS_GEMM_QUANT_UNPACK_H

#include "kernels/gemm/gemm.h"

/* Input k of output `column`, without scale and multiplier. */
static inline int nmlp_gemm_quant_code(const char *codes, nmlp_dtype dtype, int64_t k, int column) {
    static const int byte_of[4] = {0, 2, 1, 3};
    uint32_t word;
    if (dtype == NMLP_DTYPE_Q8) return (int8_t)codes[k / 4 * NMLP_LINE_BYTES + 4 * column + byte_of[k % 4]];
    memcpy(&word, codes + k / 8 * NMLP_LINE_BYTES + 4 * column, sizeof word);
    return (int)((word >> (k % 2 * 16 + k % 8 / 2 * 4) & 15) ^ 8) - 8;
}

/* k inputs to pairs of bf16: codes of Q8, and of Q4M times their multipliers, as they are, whose scale waits for
 * complete sums; those of Q4 times the scale of their group, rounded, because tile products have no place for it. */
static inline void nmlp_gemm_quant_unpack_bf16(void *dst, const nmlp_gemm_quant_strip *strip, int64_t k) {
    const uint16_t *q4_scales = (const uint16_t *)(const void *)strip->scales;
    uint16_t *pairs = dst;
    for (int64_t i = 0; i < k; i++)
        for (int j = 0; j < NMLP_STRIP; j++) {
            int64_t at = strip->group > 0 ? i / strip->group * NMLP_STRIP + j : 0;
            bool q4 = strip->dtype == NMLP_DTYPE_Q4;
            int zero = q4 && strip->per_group ? strip->per_group[at] : 0;
            float scale = q4                               ? nmlp_f16_to_f32(q4_scales[at])
                          : strip->dtype == NMLP_DTYPE_Q4M ? (float)strip->per_group[at]
                                                           : 1.0f;
            float value = (float)(nmlp_gemm_quant_code(strip->codes, strip->dtype, i, j) - zero) * scale;
            pairs[(i & ~(int64_t)1) * NMLP_STRIP + 2 * j + (i & 1)] = nmlp_f32_to_bf16(value);
        }
}

#endif
