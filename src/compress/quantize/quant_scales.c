#include "compress/quantize/quant_scales.h"

#include <math.h>

#include "tensor/dtype.h"

enum { LANES = 8 };

/* Of weights below it the reciprocal of a scale may be infinite, and a code no number: they become 0. */
static const float lowest_peak = 1e-30f;

/* Rounds with one scale; then the best scale of those codes, and the error that remains with it. */
static double try_scale(const float *w, const float *h, int64_t n, float scale, float lowest, float highest,
                        float *best_scale) {
    float inverse = 1.0f / scale;
    float wq = 0, qq = 0, ww = 0, parts[3][LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            float q = nmlp_quant_code(w[i + k], inverse, lowest, highest), hw = h[i + k] * w[i + k];
            parts[0][k] += hw * q;
            parts[1][k] += h[i + k] * q * q;
            parts[2][k] += hw * w[i + k];
        }
    }
    for (; i < n; i++) {
        float q = nmlp_quant_code(w[i], inverse, lowest, highest);
        wq += h[i] * w[i] * q;
        qq += h[i] * q * q;
        ww += h[i] * w[i] * w[i];
    }
    for (int k = 0; k < LANES; k++) {
        wq += parts[0][k];
        qq += parts[1][k];
        ww += parts[2][k];
    }
    *best_scale = qq > 0 ? wq / qq : scale;
    return qq > 0 ? (double)ww - (double)wq * (double)wq / (double)qq : (double)ww;
}

static float peak_of(const float *w, int64_t n) {
    float peak = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabsf(w[i]) > fabsf(peak)) peak = w[i];
    return peak;
}

float nmlp_quant_search_q4(const float *w, const float *h, int64_t n) {
    float peak = peak_of(w, n), best = 0;
    double least = INFINITY;
    if (!(fabsf(peak) > lowest_peak)) return 0;
    /* The peak becomes the code -8 or 7, or is clipped a little. */
    for (int side = 0; side < 2; side++) {
        for (int step = 0; step < 12; step++) {
            float code = side == 0 ? -7.0f - 0.25f * (float)step : 6.5f + 0.25f * (float)step, scale;
            double error = try_scale(w, h, n, peak / code, -8, 7, &scale);
            if (error >= least) continue;
            least = error;
            best = scale;
        }
    }
    return nmlp_f16_to_f32(nmlp_f32_to_f16(best));
}

/* The range of the group, from clipped a little to one with room, begins at a code next to where it would. */
float nmlp_quant_search_q4_zero(const float *w, const float *h, int64_t n, int *zero) {
    float least_w = 0, largest_w = 0, best = 0;
    double least = INFINITY;
    *zero = 0;
    for (int64_t i = 0; i < n; i++) {
        least_w = fminf(least_w, w[i]);
        largest_w = fmaxf(largest_w, w[i]);
    }
    if (!(largest_w - least_w > lowest_peak)) return 0;
    for (int step = 0; step < 14; step++) {
        float start = (largest_w - least_w) * (0.70f + 0.03f * (float)step) / 15.0f;
        int begin = (int)nearbyintf(-8.0f - least_w * 15.0f / (largest_w - least_w));
        for (int z = begin - 1; z <= begin + 1; z++) {
            float scale;
            if (z < -8 || z > 7) continue;
            double error = try_scale(w, h, n, start, (float)(-8 - z), (float)(7 - z), &scale);
            if (error >= least || !(scale > 0)) continue;
            least = error;
            best = scale;
            *zero = z;
        }
    }
    return nmlp_f16_to_f32(nmlp_f32_to_f16(best));
}

float nmlp_quant_search_q8(const float *w, const float *h, int64_t n) {
    float peak = fabsf(peak_of(w, n)), best = 0;
    double least = INFINITY;
    if (!(peak > lowest_peak)) return 0;
    for (int step = 0; step < 12; step++) {
        float scale;
        double error = try_scale(w, h, n, peak / (127.0f + 4.0f * (float)step), -127, 127, &scale);
        if (error >= least) continue;
        least = error;
        best = scale;
    }
    return best;
}

/* The peak becomes the code -32 or 31, or is clipped. */
float nmlp_quant_search_q6(const float *w, const float *h, int64_t n) {
    float peak = peak_of(w, n), best = 0;
    double least = INFINITY;
    if (!(fabsf(peak) > lowest_peak)) return 0;
    for (int side = 0; side < 2; side++) {
        for (int step = 0; step < 16; step++) {
            float code = side == 0 ? -31.0f - (float)step : 30.5f + (float)step, scale;
            double error = try_scale(w, h, n, peak / code, -32, 31, &scale);
            if (error >= least) continue;
            least = error;
            best = scale;
        }
    }
    return best;
}

/* The weighted squared error of a group with one scale. */
static float group_error(const nmlp_quant_multiplied *f, const float *w, const float *h, int64_t n, float scale) {
    float inverse = 1.0f / scale, sum = 0, parts[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float error = w[i + k] - scale * nmlp_quant_code(w[i + k], inverse, f->lowest, f->highest);
            parts[k] += h[i + k] * error * error;
        }
    for (; i < n; i++) {
        float error = w[i] - scale * nmlp_quant_code(w[i], inverse, f->lowest, f->highest);
        sum += h[i] * error * error;
    }
    for (int k = 0; k < LANES; k++) sum += parts[k];
    return sum;
}

/* The best multiplier among those that bring the peak near one end of the codes or the other, or clip it. */
static float search_multiplier(const nmlp_quant_multiplied *f, const float *w, const float *h, int64_t n, float step,
                               float *multiplier) {
    const float peak = peak_of(w, n), ends[] = {f->lowest, f->highest};
    float least = INFINITY;
    *multiplier = 1;
    for (int end = 0; end < 2; end++) {
        float ideal = nearbyintf(peak / (ends[end] * step));
        for (int away = -1; away <= 2; away++) {
            float m = ideal > 0 ? ideal - (float)away : ideal + (float)away;
            m = fminf(fmaxf(m, (float)f->lowest_multiplier), (float)f->highest_multiplier);
            if (m == 0) continue;
            float error = group_error(f, w, h, n, m * step);
            if (!(error < least)) continue;
            least = error;
            *multiplier = m;
        }
    }
    return least;
}

static double search_multipliers(const nmlp_quant_multiplied *f, const float *w, const float *h, int64_t k, float step,
                                 float *multipliers) {
    double sum = 0;
    for (int64_t first = 0; first < k; first += f->group) {
        int64_t n = k - first < f->group ? k - first : f->group;
        sum += (double)search_multiplier(f, w + first, h + first, n, step, &multipliers[first / f->group]);
    }
    return sum;
}

/* The largest of all becomes the lowest code with the highest multiplier, or is clipped, or has room. */
float nmlp_quant_search_multiplied(const nmlp_quant_multiplied *f, const float *w, const float *h, int64_t k,
                                   float *multipliers) {
    float peak = peak_of(w, k), largest = f->lowest * (float)f->highest_multiplier, best = 0;
    double least = INFINITY;
    for (int64_t g = 0; g < (k + f->group - 1) / f->group; g++) multipliers[g] = 1;
    if (!(fabsf(peak) > lowest_peak)) return 0;
    for (int i = 0; i < 13; i++) {
        float step = peak / largest * (0.64f + 0.04f * (float)i);
        double error = search_multipliers(f, w, h, k, step, multipliers);
        if (error >= least) continue;
        least = error;
        best = step;
    }
    search_multipliers(f, w, h, k, best, multipliers);
    return best;
}

/* What is left with a scale, and the best scale of the same codes. */
static double try_scale_fp8(const float *w, const float *h, int64_t n, float scale, float *best_scale) {
    float inverse = 1.0f / scale;
    double wq = 0, qq = 0, ww = 0;
    for (int64_t i = 0; i < n; i++) {
        float q = nmlp_fp8_round(w[i] * inverse), hw = h[i] * w[i];
        wq += (double)(hw * q);
        qq += (double)(h[i] * q * q);
        ww += (double)(hw * w[i]);
    }
    *best_scale = qq > 0 ? (float)(wq / qq) : scale;
    return qq > 0 ? ww - wq * wq / qq : ww;
}

/* All of one binade: another power of two changes nothing but the smallest weights. */
float nmlp_quant_search_fp8(const float *w, const float *h, int64_t n) {
    float peak = fabsf(peak_of(w, n)), best = 0;
    double least = INFINITY;
    if (!(peak > lowest_peak)) return 0;
    for (int step = 0; step < 12; step++) {
        float scale;
        double error = try_scale_fp8(w, h, n, peak / (NMLP_FP8_LARGEST - 10.0f * (float)step), &scale);
        if (error >= least) continue;
        least = error;
        best = scale;
    }
    return best;
}
