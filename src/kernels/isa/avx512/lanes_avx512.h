/* What vec_body.h needs of a set, with AVX-512. */
#ifndef NMLP_KERNELS_ISA_AVX512_LANES_AVX512_H
#define NMLP_KERNELS_ISA_AVX512_LANES_AVX512_H

#include <immintrin.h>
#include <stdbool.h>

#include "kernels/ops/vec_lanes.h"

/* Of two operands the second is returned where one is NaN. */
static inline lanes at_most(lanes x, lanes bound) { return (lanes)_mm512_min_ps((__m512)bound, (__m512)x); }
static inline lanes at_least(lanes x, lanes bound) { return (lanes)_mm512_max_ps((__m512)bound, (__m512)x); }

static inline bool all_at_most(lanes x, float bound) {
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_LE_OQ) == 0xffff;
}

static inline lanes nearest_integer(lanes x) {
    return (lanes)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* 14 bits, doubled by one step of Newton; a division takes as long as the rest of silu. */
static inline lanes reciprocal(lanes x) {
    lanes first = (lanes)_mm512_rcp14_ps((__m512)x);
    return first + first * (1.0f - x * first);
}

static inline lanes times_power(lanes p, lanes n) { return (lanes)_mm512_scalef_ps((__m512)p, (__m512)n); }

#endif
