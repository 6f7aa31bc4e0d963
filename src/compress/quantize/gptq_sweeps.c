#include "compress/quantize/gptq_internal.h"

#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "linalg/linalg.h"
#include "tensor/quant.h"

/* The nearest scale that row i may have; 0 for one whose multiplier would be 0. */
static float round_scale(const nmlp_gptq_rounding *r, const nmlp_gptq_rows *s, int64_t i, float scale) {
    if (r->out->dtype == NMLP_DTYPE_Q4) return nmlp_f16_to_f32(nmlp_f32_to_f16(scale));
    if (!nmlp_quant_has_multipliers(r->out->dtype)) return scale;
    float lowest = (float)nmlp_quant_multiplier_lowest(r->out->dtype);
    float highest = (float)nmlp_quant_multiplier_highest(r->out->dtype);
    return s->steps[i] != 0 ? nmlp_quant_code(scale, 1.0f / s->steps[i], lowest, highest) * s->steps[i] : 0;
}

void nmlp_gptq_measure_rows(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, const float *w, int64_t n_rows) {
    int64_t k = r->gptq->n;
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < k; j++)
            s->residual[i * k + j] = w[i * k + j] - s->codes[i * k + j] * s->scales[i * r->n_groups + j / r->group];
    nmlp_linalg_gemm_f32_strided(n_rows, k, k, s->residual, k, r->gptq->moments, k, s->gradient, k);
}

static void add_scaled(float *y, const float *x, float a, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

static float dot(const float *x, const float *y, int64_t n) {
    float sum[8] = {0}, rest = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) sum[k] += x[i + k] * y[i + k];
    for (; i < n; i++) rest += x[i] * y[i];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7])) + rest;
}

/* Zero points of a group moved by one where that helps, with all codes as they are: every weight of the group moves by
 * its scale. */
static void improve_zeros(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, int64_t g, int64_t n_rows) {
    int64_t k = r->gptq->n, first = g * r->group, n = nmlp_min(r->group, k - first);
    float curvature = 0;
    memset(s->ones, 0, (size_t)k * sizeof *s->ones);
    for (int64_t j = first; j < first + n; j++) add_scaled(s->ones, r->gptq->moments + j * k, 1, k);
    for (int64_t j = first; j < first + n; j++) curvature += s->ones[j];
    if (!(curvature > 0)) return;
    for (int64_t i = 0; i < n_rows; i++) {
        float scale = s->scales[i * r->n_groups + g], *zero = &s->zeros[i * r->n_groups + g], slope = 0;
        for (int64_t j = first; j < first + n; j++) slope += s->gradient[i * k + j];
        float step = scale > 0 ? slope / (curvature * scale) : 0;
        float move = step > 0.5f ? 1.0f : step < -0.5f ? -1.0f : 0.0f;
        if (move == 0 || *zero - move < r->lowest || *zero - move > r->highest) continue;
        *zero -= move;
        for (int64_t j = first; j < first + n; j++) {
            s->codes[i * k + j] += move;
            s->residual[i * k + j] -= move * scale;
        }
        add_scaled(s->gradient + i * k, s->ones, -move * scale, k);
    }
}

/* The best scale of every group in turn, with all codes as they are. What a step changes of the gradients of all rows
 * is one product for a group. */
static void improve_scales(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, int64_t n_rows) {
    int64_t k = r->gptq->n;
    for (int64_t g = 0; g < r->n_groups; g++) {
        int64_t first = g * r->group, n = nmlp_min(r->group, k - first);
        nmlp_linalg_gemm_f32_strided(n_rows, k, n, s->codes + first, k, r->gptq->moments + first * k, k, s->seen, k);
        for (int64_t i = 0; i < n_rows; i++) {
            const float *codes = s->codes + i * k + first, *seen = s->seen + i * k;
            float slope = dot(codes, s->gradient + i * k + first, n), curvature = dot(codes, seen + first, n);
            if (!(curvature > 0)) continue;
            float *scale = &s->scales[i * r->n_groups + g];
            float next = round_scale(r, s, i, *scale + slope / curvature), step = next - *scale;
            if (step == 0 || !isfinite(next) || next == 0) continue;
            *scale = next;
            add_scaled(s->residual + i * k + first, codes, -step, n);
            add_scaled(s->gradient + i * k, seen, -step, k);
        }
        if (r->has_zeros) improve_zeros(r, s, g, n_rows);
    }
}

/* The best step of every row, with codes and multipliers as they are. */
static void improve_steps(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, int64_t n_rows) {
    int64_t k = r->gptq->n;
    float *multiplied = s->errors; /* codes times multipliers; errors are not needed any more */
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < k; j++) {
            float scale = s->scales[i * r->n_groups + j / r->group];
            multiplied[i * k + j] = s->steps[i] != 0 ? s->codes[i * k + j] * nearbyintf(scale / s->steps[i]) : 0;
        }
    nmlp_linalg_gemm_f32_strided(n_rows, k, k, multiplied, k, r->gptq->moments, k, s->seen, k);
    for (int64_t i = 0; i < n_rows; i++) {
        const float *of_row = multiplied + i * k, *seen = s->seen + i * k;
        float slope = dot(of_row, s->gradient + i * k, k), curvature = dot(of_row, seen, k);
        float next = curvature > 0 ? s->steps[i] + slope / curvature : 0;
        if (next == 0 || !isfinite(next)) continue;
        float change = next - s->steps[i];
        for (int64_t g = 0; g < r->n_groups; g++) {
            float *scale = &s->scales[i * r->n_groups + g];
            *scale = nearbyintf(*scale / s->steps[i]) * next;
        }
        s->steps[i] = next;
        add_scaled(s->residual + i * k, of_row, -change, k);
        add_scaled(s->gradient + i * k, seen, -change, k);
    }
}

/* The best code of every column in turn, with everything else as it is. */
static void improve_codes(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, int64_t i) {
    const nmlp_gptq *g = r->gptq;
    int64_t k = g->n;
    float *codes = s->codes + i * k, *residual = s->residual + i * k, *gradient = s->gradient + i * k;
    for (int64_t at = 0; at < k; at++) {
        int64_t column = g->order[at];
        float scale = s->scales[i * r->n_groups + column / r->group];
        float zero = s->zeros[i * r->n_groups + column / r->group];
        if (scale == 0) continue;
        float step = gradient[column] / (g->moments[column * k + column] * scale);
        float code = nmlp_gptq_code(r, codes[column] + step, 1.0f, zero);
        if (code == codes[column]) continue;
        float change = (code - codes[column]) * scale;
        codes[column] = code;
        residual[column] -= change;
        add_scaled(gradient, g->moments + column * k, -change, k);
    }
}

void nmlp_gptq_sweep(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, int64_t n_rows) {
    improve_scales(r, s, n_rows);
    if (nmlp_quant_has_multipliers(r->out->dtype)) improve_steps(r, s, n_rows);
    for (int64_t i = 0; i < n_rows; i++) improve_codes(r, s, i);
}
