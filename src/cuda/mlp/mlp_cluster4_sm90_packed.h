/* Two f32 in a word, for the sums that go between clusters of mlp_cluster4_sm90.cu; also as C, for a test.
 *
 * Both are multiples of a unit, a power of two that the larger one sets, so that it has 10 bits: each is off by 2^-10
 * of the larger at most, half of what bf16 is off by. From the lowest bit: both, offset to be positive, in 11 bits
 * each; a bit that is 0; the unit's exponent, where f32 has it; and a tag, that tells which launch wrote the word.
 * Where one is not finite both become NaN; a larger one below 2^-111 counts as that.
 *
 * Added to 2^23, multiples of the unit are the lowest bits of an f32. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_PACKED_H
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_PACKED_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define NMLP_CUDA_MLP_CLUSTER4_INLINE static __device__ __forceinline__
#else
#define NMLP_CUDA_MLP_CLUSTER4_INLINE static inline
#endif

#define NMLP_CUDA_MLP_CLUSTER4_TAG 0x80000000u

enum {
    NMLP_CUDA_MLP_CLUSTER4_PACKED_BITS = 11,
    NMLP_CUDA_MLP_CLUSTER4_PACKED_ZERO = 1 << (NMLP_CUDA_MLP_CLUSTER4_PACKED_BITS - 1),
    NMLP_CUDA_MLP_CLUSTER4_PACKED_MASK = (1 << NMLP_CUDA_MLP_CLUSTER4_PACKED_BITS) - 1,
    NMLP_CUDA_MLP_CLUSTER4_UNIT_BITS =
        NMLP_CUDA_MLP_CLUSTER4_PACKED_BITS - 2, /* the larger one's exponent less the unit's */
    NMLP_CUDA_MLP_CLUSTER4_EXPONENT_ONE = 1 << 23,
    NMLP_CUDA_MLP_CLUSTER4_EXPONENT_MASK = 0x7f800000,
    NMLP_CUDA_MLP_CLUSTER4_EXPONENT_LEAST =
        16 * NMLP_CUDA_MLP_CLUSTER4_EXPONENT_ONE, /* of the larger: the unit and its inverse are f32 */
    NMLP_CUDA_MLP_CLUSTER4_TWO_TO_23 = 0x4b000000 /* as f32 */
};

typedef struct nmlp_cuda_mlp_cluster4_pair {
    float a;
    float b;
} nmlp_cuda_mlp_cluster4_pair;

NMLP_CUDA_MLP_CLUSTER4_INLINE uint32_t nmlp_cuda_mlp_cluster4_bits(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

NMLP_CUDA_MLP_CLUSTER4_INLINE float nmlp_cuda_mlp_cluster4_float(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

NMLP_CUDA_MLP_CLUSTER4_INLINE uint32_t nmlp_cuda_mlp_cluster4_larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
NMLP_CUDA_MLP_CLUSTER4_INLINE uint32_t nmlp_cuda_mlp_cluster4_smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* As the lowest bits of 2^23 and more. */
NMLP_CUDA_MLP_CLUSTER4_INLINE uint32_t nmlp_cuda_mlp_cluster4_units(float v, float per_unit) {
    return nmlp_cuda_mlp_cluster4_bits(fmaf(v, per_unit, 8388608.0f + NMLP_CUDA_MLP_CLUSTER4_PACKED_ZERO));
}

/* `tag`: 0 or NMLP_CUDA_MLP_CLUSTER4_TAG. */
NMLP_CUDA_MLP_CLUSTER4_INLINE uint32_t nmlp_cuda_mlp_cluster4_pack(float a, float b, uint32_t tag) {
    const uint32_t largest = nmlp_cuda_mlp_cluster4_larger(nmlp_cuda_mlp_cluster4_bits(a) & 0x7fffffffu,
                                                           nmlp_cuda_mlp_cluster4_bits(b) & 0x7fffffffu);
    const uint32_t size = nmlp_cuda_mlp_cluster4_smaller(
        largest,
        NMLP_CUDA_MLP_CLUSTER4_EXPONENT_MASK); /* NaN counts as infinity: the mma makes the largest of all words */
    const uint32_t rounded = size + (NMLP_CUDA_MLP_CLUSTER4_EXPONENT_ONE >> (NMLP_CUDA_MLP_CLUSTER4_UNIT_BITS + 1));
    const uint32_t exponent = nmlp_cuda_mlp_cluster4_larger(rounded & NMLP_CUDA_MLP_CLUSTER4_EXPONENT_MASK,
                                                            NMLP_CUDA_MLP_CLUSTER4_EXPONENT_LEAST);
    const uint32_t unit = exponent - NMLP_CUDA_MLP_CLUSTER4_UNIT_BITS * NMLP_CUDA_MLP_CLUSTER4_EXPONENT_ONE;
    const float per_unit = nmlp_cuda_mlp_cluster4_float(254u * NMLP_CUDA_MLP_CLUSTER4_EXPONENT_ONE - unit);
    const uint32_t two = (nmlp_cuda_mlp_cluster4_units(b, per_unit) << NMLP_CUDA_MLP_CLUSTER4_PACKED_BITS) +
                         nmlp_cuda_mlp_cluster4_units(a, per_unit) - NMLP_CUDA_MLP_CLUSTER4_TWO_TO_23;
    const uint32_t zeros = NMLP_CUDA_MLP_CLUSTER4_PACKED_ZERO << NMLP_CUDA_MLP_CLUSTER4_PACKED_BITS |
                           NMLP_CUDA_MLP_CLUSTER4_PACKED_ZERO; /* times infinity: NaN */
    return (exponent == NMLP_CUDA_MLP_CLUSTER4_EXPONENT_MASK ? NMLP_CUDA_MLP_CLUSTER4_EXPONENT_MASK + zeros
                                                             : two + unit) +
           tag;
}

NMLP_CUDA_MLP_CLUSTER4_INLINE float nmlp_cuda_mlp_cluster4_unpack_one(uint32_t units, float unit) {
    return (nmlp_cuda_mlp_cluster4_float((units & NMLP_CUDA_MLP_CLUSTER4_PACKED_MASK) |
                                         NMLP_CUDA_MLP_CLUSTER4_TWO_TO_23) -
            (8388608.0f + NMLP_CUDA_MLP_CLUSTER4_PACKED_ZERO)) *
           unit;
}

NMLP_CUDA_MLP_CLUSTER4_INLINE nmlp_cuda_mlp_cluster4_pair nmlp_cuda_mlp_cluster4_unpack(uint32_t w) {
    const float unit = nmlp_cuda_mlp_cluster4_float(w & NMLP_CUDA_MLP_CLUSTER4_EXPONENT_MASK);
    nmlp_cuda_mlp_cluster4_pair r;
    r.a = nmlp_cuda_mlp_cluster4_unpack_one(w, unit);
    r.b = nmlp_cuda_mlp_cluster4_unpack_one(w >> NMLP_CUDA_MLP_CLUSTER4_PACKED_BITS, unit);
    return r;
}

#endif
