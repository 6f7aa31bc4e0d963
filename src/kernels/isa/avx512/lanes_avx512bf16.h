/* Results rounded to bf16, with the instructions that come with AMX. */
#ifndef NMLP_KERNELS_ISA_AVX512_LANES_AVX512BF16_H
#define NMLP_KERNELS_ISA_AVX512_LANES_AVX512BF16_H

#include "kernels/isa/avx512/lanes_avx512.h"

/* One instruction for a line; it takes subnormal numbers for zero, as tile products do. */
static inline void store_bf16(void *dst, lanes x) {
    __m256bh halves = _mm512_cvtneps_pbh((__m512)x);
    memcpy(dst, &halves, sizeof halves);
}

static inline void store_bf16_line(void *dst, lanes low, lanes high) {
    __m512bh line = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    memcpy(dst, &line, sizeof line);
}

static inline uint_lanes bf16_bits(lanes x) {
    return (uint_lanes)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x));
}

/* silu(gate) * up to 13 bits, for a result of 8: 2^x from a polynomial of degree 3 on x - floor(x), whose power of two
 * the scaling finds by itself. The bound keeps the reciprocal from zero, so that infinity stays infinity. */
static inline lanes gate_for_bf16(lanes gate, lanes up) {
    lanes x = at_most(gate * -1.44269504f, (lanes){0} + 125.0f);
    lanes r = (lanes)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
    lanes p = r * 0.0780245227f + 0.226067155f;
    p = p * r + 0.695833540f;
    p = p * r + 0.999925219f;
    return gate * up * (lanes)_mm512_rcp14_ps((__m512)(times_power(p, x) + 1.0f));
}

#endif
