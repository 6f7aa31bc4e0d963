/* Eight f32 in 128 bits, for the sums that go between clusters. */
#ifndef NMLP_CUDA_QUAD_PACKED_CUH
#define NMLP_CUDA_QUAD_PACKED_CUH

#include <cstdint>

namespace {

/* Multiples of a power of two, their unit, which the largest of them sets: it has 13 bits, so that each is off by 2^-13 of the largest at most. A word has two of them, offset
 * to be positive, in 14 bits each; a tag, that tells which launch wrote it; and of the first three words each three bits of the unit's exponent. Where one of the eight is not
 * finite all become NaN.
 *
 * Added to 2^23, multiples of the unit are the lowest bits of an f32. */
enum { PACKED_BITS = 14, PACKED_ZERO = 1 << (PACKED_BITS - 1), PACKED_TAG_BIT = 1 << 28, EXPONENT_SHIFT = PACKED_BITS - 2 };

const uint32_t packed_mask = (1u << PACKED_BITS) - 1;
const uint32_t two_to_23_bits = 0x4b000000u;
const float packed_zero = 8388608.0f + PACKED_ZERO;
const uint32_t exponent_mask = 7u << 29; /* of a word */
const uint32_t exponent_least = 16;      /* of the largest: that of the unit, and what it is multiplied with, are exponents of f32 */
const uint32_t exponent_not_finite = 255;
const uint32_t packed_nan = exponent_mask | PACKED_ZERO << PACKED_BITS | PACKED_ZERO; /* 0 times infinity */

__device__ __forceinline__ float larger(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

__device__ __forceinline__ float largest_of(const float (&a)[4], const float (&b)[4]) {
    const float first = larger(larger(fabsf(a[0]), fabsf(a[1])), larger(fabsf(a[2]), fabsf(a[3])));
    const float second = larger(larger(fabsf(b[0]), fabsf(b[1])), larger(fabsf(b[2]), fabsf(b[3])));
    return larger(first, second);
}

/* Two of them, without the bits of 2^23. */
__device__ __forceinline__ uint32_t pack_two(float a, float b, float scale) {
    return __float_as_uint(fmaf(b, scale, packed_zero)) * (1u << PACKED_BITS) + __float_as_uint(fmaf(a, scale, packed_zero)) - two_to_23_bits;
}

__device__ __forceinline__ uint4 pack(const float (&a)[4], const float (&b)[4], uint32_t tag) {
    const uint32_t rounded = __float_as_uint(largest_of(a, b)) + (1u << (22 - EXPONENT_SHIFT));
    const uint32_t exponent = max(rounded >> 23, exponent_least);
    const uint32_t unit = exponent - EXPONENT_SHIFT;
    const float scale = __uint_as_float((254 - unit) << 23);
    const uint4 v = make_uint4(pack_two(a[0], a[1], scale) + (unit << 29) + tag, pack_two(a[2], a[3], scale) + (unit << 26 & exponent_mask) + tag,
                               pack_two(b[0], b[1], scale) + (unit << 23 & exponent_mask) + tag, pack_two(b[2], b[3], scale) + tag);
    const bool finite = exponent != exponent_not_finite;
    const uint32_t nan = packed_nan + tag;
    return make_uint4(finite ? v.x : nan, finite ? v.y : nan, finite ? v.z : nan, finite ? v.w : nan);
}

__device__ __forceinline__ void add_two(float (&sum)[8], int i, uint32_t w, float unit) {
    sum[i] = fmaf(__uint_as_float((w & packed_mask) | two_to_23_bits) - packed_zero, unit, sum[i]);
    sum[i + 1] = fmaf(__uint_as_float((w >> PACKED_BITS & packed_mask) | two_to_23_bits) - packed_zero, unit, sum[i + 1]);
}

__device__ __forceinline__ void add_packed(float (&sum)[8], uint4 v) {
    const float unit = __uint_as_float((v.x & exponent_mask) >> 6 | (v.y & exponent_mask) >> 3 | (v.z & exponent_mask));
    add_two(sum, 0, v.x, unit);
    add_two(sum, 2, v.y, unit);
    add_two(sum, 4, v.z, unit);
    add_two(sum, 6, v.w, unit);
}

} // namespace

#endif
