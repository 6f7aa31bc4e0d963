/* Norms, rotation, gated activation and losses, row by row. */
#ifndef NMLP_TRAIN_ROWS_BODY_H
#define NMLP_TRAIN_ROWS_BODY_H

#include <math.h>
#include <string.h>

#include "train/gemm_body.h"

#ifdef NMLP_TRAIN_F64
static inline nmlp_train_real real_exp(nmlp_train_real x) { return exp(x); }
#else
/* exp to about 2 ulp without branches, so that loops over it become vector code: n = round(x / ln 2), a polynomial on
 * the rest. */
static inline nmlp_train_real real_exp(nmlp_train_real x) {
    float clamped = x > 88.0f ? 88.0f : x;
    clamped = clamped < -87.0f ? -87.0f : clamped;
    float shifted = clamped * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the low bits are the rounded integer */
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    float n = shifted - 12582912.0f;
    float r = clamped - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    uint32_t power = (uint32_t)(bits - 0x4b400000 + 127) << 23;
    float scale;
    memcpy(&scale, &power, sizeof scale);
    return p * scale;
}
#endif

static nmlp_train_real sum_vec(vec v) {
    nmlp_train_real sum = 0;
    for (int j = 0; j < VL; j++) sum += v[j];
    return sum;
}

static nmlp_train_real dot(const nmlp_train_real *a, const nmlp_train_real *b, int64_t n) {
    vec lanes = {0};
    int64_t i = 0;
    for (; i + VL <= n; i += VL) lanes += *(const vec *)(a + i) * *(const vec *)(b + i);
    nmlp_train_real sum = sum_vec(lanes);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static nmlp_train_real sum_of(const nmlp_train_real *a, int64_t n) {
    vec lanes = {0};
    int64_t i = 0;
    for (; i + VL <= n; i += VL) lanes += *(const vec *)(a + i);
    nmlp_train_real sum = sum_vec(lanes);
    for (; i < n; i++) sum += a[i];
    return sum;
}

static nmlp_train_real max_of(const nmlp_train_real *a, int64_t n) {
    nmlp_train_real lanes[16];
    nmlp_train_real max = a[0];
    int64_t i = 0;
    for (int j = 0; j < 16; j++) lanes[j] = max;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) lanes[j] = a[i + j] > lanes[j] ? a[i + j] : lanes[j];
    for (; i < n; i++) max = a[i] > max ? a[i] : max;
    for (int j = 0; j < 16; j++) max = lanes[j] > max ? lanes[j] : max;
    return max;
}

static void add(nmlp_train_real *x, const nmlp_train_real *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

static double match_row(nmlp_train_real *dx, const nmlp_train_real *x, const nmlp_train_real *y, int64_t h,
                        double scale) {
    vec lanes = {0};
    int64_t i = 0;
    double energy = (double)dot(y, y, h);
    for (; i + VL <= h; i += VL) {
        vec off = *(const vec *)(x + i) - *(const vec *)(y + i);
        lanes += off * off;
    }
    nmlp_train_real sum = sum_vec(lanes);
    for (; i < h; i++) sum += (x[i] - y[i]) * (x[i] - y[i]);
    if (!(energy > 0)) return 0;
    nmlp_train_real pull = (nmlp_train_real)(2 * scale / energy);
    for (i = 0; i < h; i++) dx[i] += pull * (x[i] - y[i]);
    return (double)sum / energy;
}

static nmlp_train_real inverse_rms(const nmlp_train_real *x, int64_t h, double eps) {
    return (nmlp_train_real)(1 / sqrt((double)dot(x, x, h) / (double)h + eps));
}

static void norm_forward(nmlp_train_real *y, const nmlp_train_real *x, const nmlp_train_real *w, double eps, int64_t s,
                         int64_t h) {
    for (int64_t t = 0; t < s; t++, x += h, y += h) {
        nmlp_train_real r = inverse_rms(x, h, eps);
        for (int64_t i = 0; i < h; i++) y[i] = x[i] * r * w[i];
    }
}

/* y = x r w with r = rms(x)^-1: dx = r (dy w) - x r^3 / h * sum(dy w x). */
static void norm_backward(nmlp_train_real *dx, const nmlp_train_real *dy, const nmlp_train_real *x,
                          const nmlp_train_real *w, double eps, int64_t s, int64_t h, bool accumulate) {
    for (int64_t t = 0; t < s; t++, x += h, dy += h, dx += h) {
        nmlp_train_real r = inverse_rms(x, h, eps);
        vec lanes = {0};
        int64_t i = 0;
        for (; i + VL <= h; i += VL) lanes += *(const vec *)(dy + i) * *(const vec *)(x + i) * *(const vec *)(w + i);
        nmlp_train_real along = sum_vec(lanes);
        for (; i < h; i++) along += dy[i] * x[i] * w[i];
        nmlp_train_real pull = along * r * r * r / (nmlp_train_real)h;
        if (accumulate) {
            for (i = 0; i < h; i++) dx[i] += r * dy[i] * w[i] - pull * x[i];
        } else {
            for (i = 0; i < h; i++) dx[i] = r * dy[i] * w[i] - pull * x[i];
        }
    }
}

static void norm_backward_weight(nmlp_train_real *dw, const nmlp_train_real *dy, const nmlp_train_real *x, double eps,
                                 int64_t s, int64_t h) {
    for (int64_t t = 0; t < s; t++, x += h, dy += h) {
        nmlp_train_real r = inverse_rms(x, h, eps);
        for (int64_t i = 0; i < h; i++) dw[i] += dy[i] * x[i] * r;
    }
}

static void rope(nmlp_train_real *x, const nmlp_train_real *table, int64_t first, int64_t s, int64_t t, int64_t heads,
                 int64_t d, nmlp_train_real sign) {
    int64_t half = d / 2;
    for (int64_t row = first; row < first + s; row++) {
        const nmlp_train_real *cosine = table + row % t * d;
        const nmlp_train_real *sine = cosine + half;
        for (int64_t h = 0; h < heads; h++) {
            nmlp_train_real *low = x + (row * heads + h) * d;
            nmlp_train_real *high = low + half;
            for (int64_t i = 0; i < half; i++) {
                nmlp_train_real a = low[i];
                nmlp_train_real b = high[i];
                low[i] = a * cosine[i] - sign * b * sine[i];
                high[i] = b * cosine[i] + sign * a * sine[i];
            }
        }
    }
}

static void swiglu_forward(nmlp_train_real *act, const nmlp_train_real *gate, const nmlp_train_real *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) act[i] = gate[i] / (1 + real_exp(-gate[i])) * up[i];
}

static void swiglu_backward(nmlp_train_real *gate, nmlp_train_real *up, const nmlp_train_real *d_act, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        nmlp_train_real g = gate[i];
        nmlp_train_real sigmoid = 1 / (1 + real_exp(-g));
        nmlp_train_real d_up = d_act[i] * g * sigmoid;
        gate[i] = d_act[i] * up[i] * sigmoid * (1 + g * (1 - sigmoid));
        up[i] = d_up;
    }
}

/* x <- exp(x - max); the sum, and the log of the sum of exp(x) through *lse. */
static nmlp_train_real exponentials(nmlp_train_real *x, int64_t n, double *lse) {
    nmlp_train_real max = max_of(x, n);
    for (int64_t i = 0; i < n; i++) x[i] = real_exp(x[i] - max);
    nmlp_train_real sum = sum_of(x, n);
    *lse = (double)max + log((double)sum);
    return sum;
}

/* KL(teacher || student) = sum p_t (z_t - z_s) - lse_t + lse_s. */
static void distil_row(nmlp_train_loss_row *row) {
    nmlp_train_real *zs = row->logits;
    nmlp_train_real *zt = row->teacher;
    nmlp_train_real max_t = max_of(zt, row->v);
    nmlp_train_real max_s = max_of(zs, row->v);
    nmlp_train_real target = zs[row->target];
    vec mass = {0}, moment = {0}, mass_s = {0};
    nmlp_train_real rest[3] = {0, 0, 0};
    int64_t i = 0;
    for (; i + VL <= row->v; i += VL) {
        nmlp_train_real e[VL], f[VL];
        for (int j = 0; j < VL; j++) e[j] = real_exp(zt[i + j] - max_t);
        for (int j = 0; j < VL; j++) f[j] = real_exp(zs[i + j] - max_s);
        vec p = *(const vec *)e;
        vec q = *(const vec *)f;
        mass += p;
        mass_s += q;
        moment += p * ((*(const vec *)(zt + i) - max_t) - (*(const vec *)(zs + i) - max_s));
        *(vec *)(zt + i) = p;
        *(vec *)(zs + i) = q;
    }
    for (; i < row->v; i++) {
        nmlp_train_real p = real_exp(zt[i] - max_t);
        nmlp_train_real q = real_exp(zs[i] - max_s);
        rest[0] += p;
        rest[1] += p * ((zt[i] - max_t) - (zs[i] - max_s));
        rest[2] += q;
        zt[i] = p;
        zs[i] = q;
    }
    nmlp_train_real sum_t = sum_vec(mass) + rest[0];
    nmlp_train_real sum_s = sum_vec(mass_s) + rest[2];
    row->loss = (double)(sum_vec(moment) + rest[1]) / (double)sum_t - log((double)sum_t) + log((double)sum_s);
    row->nll = log((double)sum_s) + (double)max_s - (double)target;
    nmlp_train_real scale_s = row->scale / sum_s;
    nmlp_train_real scale_t = row->scale / sum_t;
    for (i = 0; i < row->v; i++) zs[i] = zs[i] * scale_s - zt[i] * scale_t;
}

static void loss_row(nmlp_train_loss_row *row) {
    double lse;
    if (row->teacher) {
        distil_row(row);
        return;
    }
    nmlp_train_real target = row->logits[row->target];
    nmlp_train_real sum = exponentials(row->logits, row->v, &lse);
    row->loss = row->nll = lse - (double)target;
    nmlp_train_real scale = row->scale / sum;
    for (int64_t i = 0; i < row->v; i++) row->logits[i] *= scale;
    row->logits[row->target] -= row->scale;
}

#endif
