/* The scale of a group of weights by a search for the least weighted squared error. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_SCALES_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_SCALES_H

#include <stdint.h>

/* Of n weights w with importances h (all above 0), for codes from -8 to 7; a number that f16 holds, may be negative. */
float nmlp_quant_search_q4(const float *w, const float *h, int64_t n);
/* The same with a zero point from -8 to 7: w = (code - zero) * scale; the scale is not negative. */
float nmlp_quant_search_q4_zero(const float *w, const float *h, int64_t n, int *zero);
/* For codes from -127 to 127. */
float nmlp_quant_search_q8(const float *w, const float *h, int64_t n);

/* For codes from -32 to 31; may be negative. */
float nmlp_quant_search_q6(const float *w, const float *h, int64_t n);

/* A row of K weights in groups of `group`: multipliers [groups] and what they are multiplied with, both searched
 * together. The step may be negative; 0 for weights that are all 0. */
typedef struct nmlp_quant_multiplied {
    float lowest, highest;                     /* codes */
    int lowest_multiplier, highest_multiplier; /* below and above 0 */
    int64_t group;
} nmlp_quant_multiplied;
float nmlp_quant_search_multiplied(const nmlp_quant_multiplied *format, const float *w, const float *h, int64_t k,
                                   float *multipliers);

/* For codes of e4m3 up to 240. */
float nmlp_quant_search_fp8(const float *w, const float *h, int64_t n);

/* The nearest code; half-way cases go to the even one. Adding and taking away 1.5 * 2^23 rounds without a call. */
static inline float nmlp_quant_code(float w, float inverse, float lowest, float highest) {
    const float rounder = 12582912.0f;
    float q = w * inverse;
    q = q < lowest ? lowest : q > highest ? highest : q;
    return q + rounder - rounder;
}

#endif
