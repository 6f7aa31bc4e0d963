/* Two f32 in a word, for the sums that go between clusters. */
#ifndef NMLP_CUDA_QUAD_PACKED_CUH
#define NMLP_CUDA_QUAD_PACKED_CUH

#include <cstdint>

namespace {

/* Multiples of a unit, a power of two that the larger of the two sets, so that it has 10 bits: each is off by 2^-10 of the larger at most, half of what bf16 is off by. From
 * the lowest bit: both, offset to be positive, in 11 bits each; a bit that is 0; the unit's exponent, where f32 has it; and a tag, that tells which launch wrote the word. Where
 * one is not finite both become NaN. The two are of one token: others' sizes are no concern of theirs.
 *
 * Added to 2^23, multiples of the unit are the lowest bits of an f32. */
enum { PACKED_BITS = 11, PACKED_ZERO = 1 << (PACKED_BITS - 1), UNIT_BITS = PACKED_BITS - 2 };

const uint32_t packed_tag_bit = 1u << 31;
const uint32_t packed_mask = (1u << PACKED_BITS) - 1;
const uint32_t packed_nan = 0x7f800000u | PACKED_ZERO << PACKED_BITS | PACKED_ZERO; /* 0 times infinity */
const uint32_t two_to_23_bits = 0x4b000000u;
const float packed_zero = 8388608.0f + PACKED_ZERO;
const uint32_t exponent_mask = 0x7f800000u;
const uint32_t exponent_one = 1u << 23;
const uint32_t exponent_least = 16 * exponent_one; /* of the larger: the unit's and its inverse's are exponents of f32 */

__device__ __forceinline__ float larger(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(fabsf(a)), "f"(fabsf(b)));
    return r;
}

__device__ __forceinline__ uint32_t pack(float a, float b, uint32_t tag) {
    const uint32_t rounded = __float_as_uint(larger(a, b)) + (1u << (22 - UNIT_BITS));
    const uint32_t exponent = max(rounded & exponent_mask, exponent_least);
    const uint32_t unit = exponent - UNIT_BITS * exponent_one;
    const float per_unit = __uint_as_float(254 * exponent_one - unit);
    const uint32_t w = __float_as_uint(fmaf(b, per_unit, packed_zero)) * (1u << PACKED_BITS) + __float_as_uint(fmaf(a, per_unit, packed_zero)) - two_to_23_bits + unit;
    return (exponent == exponent_mask ? packed_nan : w) + tag;
}

__device__ __forceinline__ void add_packed(float &a, float &b, uint32_t w) {
    const float unit = __uint_as_float(w & exponent_mask);
    a = fmaf(__uint_as_float((w & packed_mask) | two_to_23_bits) - packed_zero, unit, a);
    b = fmaf(__uint_as_float((w >> PACKED_BITS & packed_mask) | two_to_23_bits) - packed_zero, unit, b);
}

} // namespace

#endif
