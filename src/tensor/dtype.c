#include "tensor/dtype.h"

int nmlp_dtype_bits(nmlp_dtype dtype) {
    switch (dtype) {
    case NMLP_DTYPE_F32: return 32;
    case NMLP_DTYPE_BF16:
    case NMLP_DTYPE_F16: return 16;
    case NMLP_DTYPE_FP8:
    case NMLP_DTYPE_Q8: return 8;
    case NMLP_DTYPE_Q6:
    case NMLP_DTYPE_Q6M: return 6;
    case NMLP_DTYPE_Q5M: return 5;
    case NMLP_DTYPE_Q4M:
    case NMLP_DTYPE_Q4: return 4;
    }
    return 0;
}

size_t nmlp_dtype_bytes(nmlp_dtype dtype) { return (size_t)(nmlp_dtype_bits(dtype) + 7) / 8; }

const char *nmlp_dtype_name(nmlp_dtype dtype) {
    switch (dtype) {
    case NMLP_DTYPE_F32: return "F32";
    case NMLP_DTYPE_BF16: return "BF16";
    case NMLP_DTYPE_F16: return "F16";
    case NMLP_DTYPE_Q8: return "Q8";
    case NMLP_DTYPE_Q4: return "Q4";
    case NMLP_DTYPE_FP8: return "FP8";
    case NMLP_DTYPE_Q6: return "Q6";
    case NMLP_DTYPE_Q6M: return "Q6M";
    case NMLP_DTYPE_Q5M: return "Q5M";
    case NMLP_DTYPE_Q4M: return "Q4M";
    }
    return "?";
}

bool nmlp_dtype_parse(const char *name, nmlp_dtype *dtype) {
    for (int d = NMLP_DTYPE_F32; d <= NMLP_DTYPE_F16; d++) {
        if (strcmp(name, nmlp_dtype_name((nmlp_dtype)d)) == 0) {
            *dtype = (nmlp_dtype)d;
            return true;
        }
    }
    return false;
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float nmlp_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1f) return from_bits(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
    float tiny = (float)mantissa * 0x1p-24f; /* subnormal: exact in f32 */
    return sign ? -tiny : tiny;
}

uint16_t nmlp_f32_to_f16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u; /* rounds past 65504: infinity */
    if (magnitude < 0x38800000u) {                       /* below 2^-14: subnormal or zero */
        float scaled = from_bits(magnitude) * 0x1p24f;   /* units of 2^-24 */
        uint32_t whole = (uint32_t)scaled;
        float rest = scaled - (float)whole;
        if (rest > 0.5f || (rest == 0.5f && (whole & 1u))) whole++;
        return (uint16_t)(sign | whole);
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

float nmlp_fp8_to_f32(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, exponent = code >> 3 & 15u, mantissa = code & 7u;
    if (nmlp_fp8_is_nan(code)) return from_bits(sign | 0x7fc00000u);
    if (exponent != 0) return from_bits(sign | (exponent + 120) << 23 | mantissa << 20);
    float tiny = (float)mantissa * 0x1p-9f; /* subnormal */
    return sign ? -tiny : tiny;
}

uint8_t nmlp_fp8_from_rounded(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7fu;
    if (magnitude < UINT32_C(121) << 23) return (uint8_t)(sign | (uint32_t)(from_bits(magnitude) * 0x1p9f));
    return (uint8_t)(sign | ((magnitude - (UINT32_C(120) << 23)) >> 20));
}

void nmlp_to_f32(float *dst, const void *src, nmlp_dtype dtype, size_t n) {
    const uint16_t *half = src;
    switch (dtype) {
    case NMLP_DTYPE_F32: memcpy(dst, src, n * sizeof *dst); return;
    case NMLP_DTYPE_BF16:
        for (size_t i = 0; i < n; i++) dst[i] = nmlp_bf16_to_f32(half[i]);
        return;
    case NMLP_DTYPE_F16:
        for (size_t i = 0; i < n; i++) dst[i] = nmlp_f16_to_f32(half[i]);
        return;
    case NMLP_DTYPE_FP8:
        for (size_t i = 0; i < n; i++) dst[i] = nmlp_fp8_to_f32(((const uint8_t *)src)[i]);
        return;
    case NMLP_DTYPE_Q8:
    case NMLP_DTYPE_Q6:
    case NMLP_DTYPE_Q6M:
    case NMLP_DTYPE_Q5M:
    case NMLP_DTYPE_Q4M:
    case NMLP_DTYPE_Q4: return; /* not without scales: nmlp_quant_row_to_f32 */
    }
}

void nmlp_from_f32(void *dst, nmlp_dtype dtype, const float *src, size_t n) {
    uint16_t *half = dst;
    switch (dtype) {
    case NMLP_DTYPE_F32: memcpy(dst, src, n * sizeof *src); return;
    case NMLP_DTYPE_BF16:
        for (size_t i = 0; i < n; i++) half[i] = nmlp_f32_to_bf16(src[i]);
        return;
    case NMLP_DTYPE_F16:
        for (size_t i = 0; i < n; i++) half[i] = nmlp_f32_to_f16(src[i]);
        return;
    case NMLP_DTYPE_FP8:
        for (size_t i = 0; i < n; i++) ((uint8_t *)dst)[i] = nmlp_fp8_from_rounded(nmlp_fp8_round(src[i]));
        return;
    case NMLP_DTYPE_Q8:
    case NMLP_DTYPE_Q6:
    case NMLP_DTYPE_Q6M:
    case NMLP_DTYPE_Q5M:
    case NMLP_DTYPE_Q4M:
    case NMLP_DTYPE_Q4: return;
    }
}
