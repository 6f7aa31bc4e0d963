/* The element-wise helpers in plain C: included by one file per instruction set, whose flags decide the vector width. */
#ifndef NMLP_KERNELS_VEC_BODY_H
#define NMLP_KERNELS_VEC_BODY_H

#include <math.h>
#include <string.h>

#include "kernels/vec.h"
#include "tensor/dtype.h"

enum { LANES = 16 };

/* exp to about 1.5 ulp: n = round(x / ln 2), a polynomial of degree 6 on |r| <= ln(2)/2, and the power of two in two
 * steps so that subnormal results and infinity come out as they should. No branches: compilers vectorise it. */
static inline float exp_one(float x) {
    float clamped = x > 89.0f ? 89.0f : x;
    clamped = clamped < -104.0f ? -104.0f : clamped;
    float shifted = clamped * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the sum's low bits are the rounded integer */
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    float n = shifted - 12582912.0f;
    int32_t power = bits - 0x4b400000;
    float r = clamped - n * 0.693145752f; /* ln 2 in two parts; the first has trailing zeros, so n times it is exact */
    r = r - n * 1.42860677e-6f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    int32_t half = power >> 1;
    uint32_t first = (uint32_t)(half + 127) << 23;
    uint32_t second = (uint32_t)(power - half + 127) << 23;
    float scale1;
    float scale2;
    memcpy(&scale1, &first, sizeof scale1);
    memcpy(&scale2, &second, sizeof scale2);
    return p * scale1 * scale2;
}

static void silu_mul(float *act, const float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) act[i] = gate[i] / (1.0f + exp_one(-gate[i])) * up[i];
}

static void put_f32(void *dst, size_t step, const float *src, int64_t n, int64_t n_padded) {
    char *line = dst;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES, line += step) memcpy(line, src + i, LANES * sizeof *src);
    for (; i < n_padded; i += LANES, line += step) {
        float rest[LANES] = {0};
        for (int j = 0; j < LANES; j++)
            if (i + j < n) rest[j] = src[i + j];
        memcpy(line, rest, sizeof rest);
    }
}

static inline void round16(uint16_t *dst, const float *src) {
    for (int j = 0; j < LANES; j++) {
        uint32_t bits;
        memcpy(&bits, src + j, sizeof bits);
        uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        uint32_t quiet = (bits >> 16) | 0x40u;
        dst[j] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

/* 16 values fill half a line. */
static void put_bf16(void *dst, size_t step, const float *src, int64_t n, int64_t n_padded) {
    char *line = dst;
    for (int64_t i = 0; i < n_padded; i += LANES) {
        float rest[LANES] = {0};
        const float *from = src + i;
        if (i + LANES > n) {
            for (int j = 0; j < LANES; j++)
                if (i + j < n) rest[j] = src[i + j];
            from = rest;
        }
        round16((uint16_t *)line, from);
        line += (uintptr_t)line % 64 ? step - 32 : 32;
    }
}

static float sum_lanes(float lanes[LANES]) {
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) lanes[j] += lanes[j + width];
    return lanes[0];
}

/* 16 scores from key `at` on; those past the end become -infinity. */
static inline void load_scores(float out[LANES], const nmlp_softmax *row, int64_t at) {
    int64_t piece = at / (LANES * row->strips);
    const float *from = row->scores + piece * row->block_stride + at % (LANES * row->strips);
    for (int j = 0; j < LANES; j++) out[j] = at + j < row->n ? from[j] * row->scale : -INFINITY;
}

static float max_score(const nmlp_softmax *row) {
    float lanes[LANES];
    float scores[LANES];
    float top = row->max;
    for (int j = 0; j < LANES; j++) lanes[j] = -INFINITY;
    for (int64_t at = 0; at < row->n; at += LANES) {
        load_scores(scores, row, at);
        for (int j = 0; j < LANES; j++) lanes[j] = scores[j] > lanes[j] ? scores[j] : lanes[j];
    }
    for (int j = 0; j < LANES; j++) top = lanes[j] > top ? lanes[j] : top;
    return top;
}

static void softmax(nmlp_softmax *row) {
    float sums[LANES] = {0};
    float top = max_score(row);
    float base = top == -INFINITY ? 0.0f : top; /* nothing but -infinity so far: probabilities are 0 */
    char *line = row->line;
    for (int64_t at = 0; at < row->n_padded; at += LANES, line += row->step) {
        float p[LANES];
        load_scores(p, row, at);
        for (int j = 0; j < LANES; j++) p[j] = exp_one(p[j] - base);
        for (int j = 0; j < LANES; j++) sums[j] += p[j];
        memcpy(line, p, sizeof p);
    }
    row->shrink = exp_one(row->max - base);
    row->sum = row->sum * row->shrink + sum_lanes(sums);
    row->max = top;
}

static void scale_by(float *y, const float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
}

static float dot(const float *a, const float *b, int64_t n) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += a[i + j] * b[i + j];
    float sum = 0.0f;
    for (; i < n; i++) sum += a[i] * b[i];
    return sum + sum_lanes(lanes);
}

static void mul_scaled(float *y, const float *x, const float *weight, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

static void add(float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

static void rotate(float *low, float *high, const float *cosine, const float *sine, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float a = low[i];
        float b = high[i];
        low[i] = a * cosine[i] - b * sine[i];
        high[i] = b * cosine[i] + a * sine[i];
    }
}

static void transpose(float *dst, const float *src, int64_t row_stride, int64_t n_rows, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < LANES; j++) dst[i * LANES + j] = j < n_rows ? src[j * row_stride + i] : 0.0f;
}

#endif
