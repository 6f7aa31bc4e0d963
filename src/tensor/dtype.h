/* Element types of tensors and their conversions. bf16, f16 and e4m3 round to nearest, ties to even; NaN stays NaN. */
#ifndef NMLP_TENSOR_DTYPE_H
#define NMLP_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The quantised types are for weights only (quant.h): their elements mean nothing without scales. */
typedef enum nmlp_dtype {
    NMLP_DTYPE_F32,
    NMLP_DTYPE_BF16,
    NMLP_DTYPE_F16,
    NMLP_DTYPE_Q8,  /* int8, a scale per row */
    NMLP_DTYPE_Q4,  /* two in a byte, a scale per group of a row */
    NMLP_DTYPE_FP8, /* e4m3, a scale per row */
    NMLP_DTYPE_Q6,  /* four in three bytes, a scale per row */
    NMLP_DTYPE_Q6M, /* 6, 5 and 4 bits, a scale per row and a small integer per group of it */
    NMLP_DTYPE_Q5M,
    NMLP_DTYPE_Q4M
} nmlp_dtype;
enum { NMLP_DTYPES = NMLP_DTYPE_Q4M + 1 };

size_t nmlp_dtype_bytes(nmlp_dtype dtype); /* 1 for types of less than 8 bits, of which bytes hold more */
int nmlp_dtype_bits(nmlp_dtype dtype);
static inline bool nmlp_dtype_is_quantised(nmlp_dtype dtype) { return dtype >= NMLP_DTYPE_Q8; }
const char *
nmlp_dtype_name(nmlp_dtype dtype); /* safetensors spelling: F32, BF16, F16; Q8, Q4, FP8, Q6, Q6M, Q5M, Q4M */
/* Of the plain types. */
bool nmlp_dtype_parse(const char *name, nmlp_dtype *dtype);

static inline float nmlp_bf16_to_f32(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline uint16_t nmlp_f32_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u); /* quiet NaN */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float nmlp_f16_to_f32(uint16_t bits);
uint16_t nmlp_f32_to_f16(float value);

/* e4m3 without infinities: 0x7f and 0xff are NaN, the largest is 448. Codes above 240 mean something else in the e4m3
 * of Trainium 1 and 2, so none is made here: nmlp_fp8_round takes values to the nearest of at most 240 in magnitude,
 * which both agree about. Its results are what nmlp_fp8_from_rounded takes. */
#define NMLP_FP8_LARGEST 240.0f
float nmlp_fp8_to_f32(uint8_t code);
static inline bool nmlp_fp8_is_nan(uint8_t code) { return (code & 0x7fu) == 0x7fu; }

static inline float nmlp_fp8_round(float value) {
    float kept = value < -NMLP_FP8_LARGEST ? -NMLP_FP8_LARGEST : value > NMLP_FP8_LARGEST ? NMLP_FP8_LARGEST : value;
    uint32_t bits, least = UINT32_C(121) << 23, rounder_bits; /* normal from 2^-6 on, steps of an eighth */
    float rounder;
    memcpy(&bits, &kept, sizeof bits);
    bits &= 0x7f800000u;
    rounder_bits = ((bits > least ? bits : least) + (UINT32_C(20) << 23)) | 0x400000u; /* 1.5 * 2^23 steps */
    memcpy(&rounder, &rounder_bits, sizeof rounder);
    return kept + rounder - rounder;
}

uint8_t nmlp_fp8_from_rounded(float value);

/* n elements of a plain type to and from f32; of FP8 the codes without scales. */
void nmlp_to_f32(float *dst, const void *src, nmlp_dtype dtype, size_t n);
void nmlp_from_f32(void *dst, nmlp_dtype dtype, const float *src, size_t n);

#endif
