#include "gguf/gguf_blocks.h"

#include <math.h>
#include <string.h>

#include "tensor/dtype.h"

enum { BLOCK = 32, SUPER = 256, HALF_BYTES = 2 };

const nmlp_gguf_layout *nmlp_gguf_layout_of(uint32_t type) {
    static const nmlp_gguf_layout layouts[] = {
        [NMLP_GGUF_TYPE_F32] = {"F32", 1, 4},         [NMLP_GGUF_TYPE_F16] = {"F16", 1, 2},
        [NMLP_GGUF_TYPE_Q4_0] = {"Q4_0", BLOCK, 18},  [NMLP_GGUF_TYPE_Q4_1] = {"Q4_1", BLOCK, 20},
        [NMLP_GGUF_TYPE_Q5_0] = {"Q5_0", BLOCK, 22},  [NMLP_GGUF_TYPE_Q5_1] = {"Q5_1", BLOCK, 24},
        [NMLP_GGUF_TYPE_Q8_0] = {"Q8_0", BLOCK, 34},  [NMLP_GGUF_TYPE_Q4_K] = {"Q4_K", SUPER, 144},
        [NMLP_GGUF_TYPE_Q5_K] = {"Q5_K", SUPER, 176}, [NMLP_GGUF_TYPE_Q6_K] = {"Q6_K", SUPER, 210},
        [NMLP_GGUF_TYPE_BF16] = {"BF16", 1, 2},
    };
    if (type >= sizeof layouts / sizeof layouts[0] || !layouts[type].name) return NULL;
    return &layouts[type];
}

static float half_at(const unsigned char *at) { return nmlp_f16_to_f32((uint16_t)(at[0] | at[1] << 8)); }

static void put_half(unsigned char *at, uint16_t half) {
    at[0] = (unsigned char)half;
    at[1] = (unsigned char)(half >> 8);
}

/* Weight i of a block of 32: four bits of it. */
static int nibble(const unsigned char *bytes, int i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }

static int fifth_bit(const unsigned char *bits, int i) { return bits[i / 8] >> (i % 8) & 1; }

static void block_32(float *w, const unsigned char *b, nmlp_gguf_type type) {
    bool has_min = type == NMLP_GGUF_TYPE_Q4_1 || type == NMLP_GGUF_TYPE_Q5_1;
    bool has_fifth = type == NMLP_GGUF_TYPE_Q5_0 || type == NMLP_GGUF_TYPE_Q5_1;
    float d = half_at(b), m = has_min ? half_at(b + HALF_BYTES) : 0;
    const unsigned char *bits = b + (has_min ? 4 : 2);
    const unsigned char *codes = bits + (has_fifth ? 4 : 0);
    int middle = has_min ? 0 : has_fifth ? 16 : 8;
    for (int i = 0; i < BLOCK; i++) {
        if (type == NMLP_GGUF_TYPE_Q8_0)
            w[i] = d * (float)(int8_t)bits[i];
        else
            w[i] = d * (float)(nibble(codes, i) + (has_fifth ? fifth_bit(bits, i) << 4 : 0) - middle) + m;
    }
}

/* Scale and minimum of part i of a Q4_K or Q5_K block, six bits each in twelve bytes: those of the last four have their
 * upper two bits above those of the first four. */
static void scale_and_min(const unsigned char *s, int i, int *scale, int *min) {
    if (i < 4) {
        *scale = s[i] & 63;
        *min = s[i + 4] & 63;
    } else {
        *scale = (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
        *min = s[i + 4] >> 4 | (s[i] >> 6) << 4;
    }
}

/* Parts of 32 weights; two of them share 32 bytes of codes. */
static void block_k45(float *w, const unsigned char *b, bool fifth) {
    float d = half_at(b), m = half_at(b + HALF_BYTES);
    const unsigned char *bits = b + 16;
    const unsigned char *codes = bits + (fifth ? 32 : 0);
    for (int part = 0; part < SUPER / BLOCK; part++) {
        int scale, min;
        scale_and_min(b + 4, part, &scale, &min);
        for (int i = 0; i < BLOCK; i++) {
            int byte = codes[part / 2 * BLOCK + i];
            int q = (part % 2 ? byte >> 4 : byte & 15) + (fifth ? (bits[i] >> part & 1) << 4 : 0);
            w[part * BLOCK + i] = d * (float)scale * (float)q - m * (float)min;
        }
    }
}

/* Halves of 128 weights: 64 bytes of low codes, 32 of high ones. */
static void block_k6(float *w, const unsigned char *b) {
    const unsigned char *scales = b + 192;
    float d = half_at(b + 208);
    for (int i = 0; i < SUPER; i++) {
        int half = i / 128, quarter = i % 128 / 32, at = i % 32;
        int byte = b[half * 64 + quarter % 2 * 32 + at];
        int low = quarter < 2 ? byte & 15 : byte >> 4;
        int high = b[128 + half * 32 + at] >> (2 * quarter) & 3;
        w[i] = d * (float)(int8_t)scales[i / 16] * (float)((low | high << 4) - 32);
    }
}

void nmlp_gguf_row_to_f32(float *dst, const unsigned char *row, nmlp_gguf_type type, int64_t k) {
    const nmlp_gguf_layout *layout = nmlp_gguf_layout_of(type);
    for (int64_t at = 0; at < k; at += layout->block, row += layout->bytes) {
        uint16_t half = layout->bytes == HALF_BYTES ? (uint16_t)(row[0] | row[1] << 8) : 0;
        switch (type) {
        case NMLP_GGUF_TYPE_F32: memcpy(dst + at, row, sizeof *dst); break;
        case NMLP_GGUF_TYPE_F16: dst[at] = nmlp_f16_to_f32(half); break;
        case NMLP_GGUF_TYPE_BF16: dst[at] = nmlp_bf16_to_f32(half); break;
        case NMLP_GGUF_TYPE_Q4_K: block_k45(dst + at, row, false); break;
        case NMLP_GGUF_TYPE_Q5_K: block_k45(dst + at, row, true); break;
        case NMLP_GGUF_TYPE_Q6_K: block_k6(dst + at, row); break;
        default: block_32(dst + at, row, type);
        }
    }
}

static float peak_of(const float *w, int n) {
    float peak = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(w[i]) > fabsf(peak)) peak = w[i];
    return peak;
}

/* Whether the scale in f16 and all weights are numbers, so that codes are. */
static bool is_finite(uint16_t half, const float *w) {
    bool finite = isfinite(nmlp_f16_to_f32(half));
    for (int i = 0; i < BLOCK; i++) finite = finite && isfinite(w[i]);
    return finite;
}

static int code_of(float w, float scale, int lowest, int highest) {
    float q = scale != 0 ? nearbyintf(w / scale) : 0;
    return q<(float)lowest ? lowest : q>(float) highest ? highest : (int)q;
}

static bool put_q8(unsigned char *b, const float *w) {
    uint16_t half = nmlp_f32_to_f16(fabsf(peak_of(w, BLOCK)) / 127);
    if (!is_finite(half, w)) return false;
    put_half(b, half);
    for (int i = 0; i < BLOCK; i++) b[HALF_BYTES + i] = (unsigned char)code_of(w[i], nmlp_f16_to_f32(half), -127, 127);
    return true;
}

static bool put_q4(unsigned char *b, const float *w) {
    uint16_t half = nmlp_f32_to_f16(peak_of(w, BLOCK) / -8);
    if (!is_finite(half, w)) return false;
    put_half(b, half);
    memset(b + HALF_BYTES, 0, BLOCK / 2);
    for (int i = 0; i < BLOCK; i++)
        b[HALF_BYTES + i % 16] |=
            (unsigned char)((code_of(w[i], nmlp_f16_to_f32(half), -8, 7) + 8) << (i < 16 ? 0 : 4));
    return true;
}

bool nmlp_gguf_row_from_f32(unsigned char *row, nmlp_gguf_type type, const float *w, int64_t k) {
    const nmlp_gguf_layout *layout = nmlp_gguf_layout_of(type);
    bool fits = true;
    for (int64_t at = 0; at < k && fits; at += layout->block, row += layout->bytes) {
        switch (type) {
        case NMLP_GGUF_TYPE_F32: memcpy(row, w + at, sizeof *w); break;
        case NMLP_GGUF_TYPE_BF16: put_half(row, nmlp_f32_to_bf16(w[at])); break;
        case NMLP_GGUF_TYPE_Q8_0: fits = put_q8(row, w + at); break;
        default: fits = put_q4(row, w + at);
        }
    }
    return fits;
}

void nmlp_gguf_row_to_q4(uint8_t *codes, uint16_t *scales, const unsigned char *row, int64_t k) {
    for (int64_t at = 0; at < k; at += BLOCK, row += 18) {
        scales[at / BLOCK] = (uint16_t)(row[0] | row[1] << 8);
        for (int i = 0; i < BLOCK; i += 2)
            codes[(at + i) / 2] = (uint8_t)(nibble(row + HALF_BYTES, i) | nibble(row + HALF_BYTES, i + 1) << 4);
    }
}

void nmlp_gguf_row_from_q4(unsigned char *row, const uint8_t *codes, const uint16_t *scales, int64_t k) {
    for (int64_t at = 0; at < k; at += BLOCK, row += 18) {
        put_half(row, scales[at / BLOCK]);
        memset(row + HALF_BYTES, 0, BLOCK / 2);
        for (int i = 0; i < BLOCK; i++) {
            int code = codes[(at + i) / 2] >> (i % 2 ? 4 : 0) & 15;
            row[HALF_BYTES + i % 16] |= (unsigned char)(code << (i < 16 ? 0 : 4));
        }
    }
}
