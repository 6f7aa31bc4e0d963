#include "tensor/quant.h"

#include <math.h>

nmlp_view nmlp_quant_view_q8(const int8_t *data, const float *scales, int64_t rows, int64_t cols) {
    nmlp_view view = nmlp_view_2d(data, NMLP_DTYPE_Q8, rows, cols);
    view.scales = scales;
    return view;
}

nmlp_view nmlp_quant_view_fp8(const uint8_t *data, const float *scales, int64_t rows, int64_t cols) {
    nmlp_view view = nmlp_view_2d(data, NMLP_DTYPE_FP8, rows, cols);
    view.scales = scales;
    return view;
}

nmlp_view nmlp_quant_view_q6(const uint8_t *data, const float *scales, int64_t rows, int64_t cols) {
    nmlp_view view = nmlp_view_2d(data, NMLP_DTYPE_Q6, rows, cols);
    view.scales = scales;
    return view;
}

nmlp_view nmlp_quant_view_q4(const uint8_t *data, const uint16_t *scales, int group, int64_t rows, int64_t cols) {
    nmlp_view view = nmlp_view_2d(data, NMLP_DTYPE_Q4, rows, cols);
    view.scales = scales;
    view.group = group;
    return view;
}

static int64_t groups_of(int64_t k, int group) { return (k + group - 1) / group; }

static void q8_to_f32(float *dst, const nmlp_view *view, int64_t row) {
    const int8_t *q = nmlp_view_row(view, row);
    float scale = ((const float *)view->scales)[row];
    for (int64_t i = 0; i < view->shape[1]; i++) dst[i] = (float)q[i] * scale;
}

static void fp8_to_f32(float *dst, const nmlp_view *view, int64_t row) {
    const uint8_t *q = nmlp_view_row(view, row);
    float scale = ((const float *)view->scales)[row];
    for (int64_t i = 0; i < view->shape[1]; i++) dst[i] = nmlp_fp8_to_f32(q[i]) * scale;
}

/* Bits of a row of Q6 that hold an input: in one byte or across two. */
static int q6_code(const uint8_t *row, int64_t i) {
    int64_t at = 6 * i / 8;
    int shift = (int)(6 * i % 8);
    unsigned bits = row[at] >> shift;
    if (shift > 2) bits |= (unsigned)row[at + 1] << (8 - shift);
    return (int)(bits & 63u) - 32;
}

void nmlp_quant_q6_unpack(int8_t *codes, const void *row, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++) codes[i] = (int8_t)q6_code(row, first + i);
}

void nmlp_quant_q6_put(void *row, int64_t i, int code) {
    uint8_t *at = (uint8_t *)row + 6 * i / 8;
    unsigned bits = (((unsigned)code + 32u) & 63u) << (6 * i % 8);
    at[0] |= (uint8_t)bits;
    if (bits > 255u) at[1] |= (uint8_t)(bits >> 8);
}

static void q6_to_f32(float *dst, const nmlp_view *view, int64_t row) {
    const uint8_t *q = nmlp_view_row(view, row);
    float scale = ((const float *)view->scales)[row];
    for (int64_t i = 0; i < view->shape[1]; i++) dst[i] = (float)q6_code(q, i) * scale;
}

static void q4_to_f32(float *dst, const nmlp_view *view, int64_t row) {
    const uint8_t *q = nmlp_view_row(view, row);
    int64_t k = view->shape[1];
    const uint16_t *scales = (const uint16_t *)view->scales + row * groups_of(k, view->group);
    const int8_t *zeros = view->zeros ? view->zeros + row * groups_of(k, view->group) : NULL;
    for (int64_t i = 0; i < k; i++) {
        int code = (q[i / 2] >> (i & 1 ? 4 : 0) & 15) - 8 - (zeros ? zeros[i / view->group] : 0);
        dst[i] = (float)code * nmlp_f16_to_f32(scales[i / view->group]);
    }
}

void nmlp_quant_row_to_f32(float *dst, const nmlp_view *view, int64_t row) {
    if (view->dtype == NMLP_DTYPE_Q8)
        q8_to_f32(dst, view, row);
    else if (view->dtype == NMLP_DTYPE_Q4)
        q4_to_f32(dst, view, row);
    else if (view->dtype == NMLP_DTYPE_FP8)
        fp8_to_f32(dst, view, row);
    else if (view->dtype == NMLP_DTYPE_Q6)
        q6_to_f32(dst, view, row);
    else
        nmlp_to_f32(dst, nmlp_view_row(view, row), view->dtype, (size_t)view->shape[1]);
}

/* The largest by magnitude, with its sign. */
static float peak_of(const float *w, int64_t n) {
    float peak = 0.0f;
    for (int64_t i = 0; i < n; i++)
        if (fabsf(w[i]) > fabsf(peak)) peak = w[i];
    return peak;
}

static int nearest(float w, float scale, int lowest, int highest) {
    if (!(scale != 0.0f)) return 0;
    float q = nearbyintf(w / scale);
    if (!(q > (float)lowest)) return lowest; /* NaN too, which is no int */
    return q < (float)highest ? (int)q : highest;
}

void nmlp_quant_row_q8(int8_t *q, float *scale, const float *w, int64_t k) {
    *scale = fabsf(peak_of(w, k)) / 127.0f;
    for (int64_t i = 0; i < k; i++) q[i] = (int8_t)nearest(w[i], *scale, -127, 127);
}

void nmlp_quant_row_q6(uint8_t *q, float *scale, const float *w, int64_t k) {
    const int lowest = nmlp_quant_lowest(NMLP_DTYPE_Q6), highest = nmlp_quant_highest(NMLP_DTYPE_Q6);
    *scale = peak_of(w, k) / (float)lowest;
    memset(q, 0, nmlp_view_bytes(&(nmlp_view){.dtype = NMLP_DTYPE_Q6, .n_dims = 2, .shape = {1, k}}));
    for (int64_t i = 0; i < k; i++) nmlp_quant_q6_put(q, i, nearest(w[i], *scale, lowest, highest));
}

void nmlp_quant_row_fp8(uint8_t *q, float *scale, const float *w, int64_t k) {
    *scale = fabsf(peak_of(w, k)) / NMLP_FP8_LARGEST;
    for (int64_t i = 0; i < k; i++) q[i] = *scale != 0.0f ? nmlp_fp8_from_rounded(nmlp_fp8_round(w[i] / *scale)) : 0;
}

/* Scale and zero point that put the least and the largest of a group, or 0, at the ends of the codes. */
static uint16_t fit_range(const float *w, int64_t n, int8_t *zero) {
    float least = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        least = fminf(least, w[i]);
        largest = fmaxf(largest, w[i]);
    }
    uint16_t half = nmlp_f32_to_f16((largest - least) / 15.0f);
    *zero = (int8_t)nearest(-8.0f * nmlp_f16_to_f32(half) - least, nmlp_f16_to_f32(half), -8, 7);
    return half;
}

void nmlp_quant_row_q4(uint8_t *q, uint16_t *scales, int8_t *zeros, int group, const float *w, int64_t k) {
    memset(q, 0, (size_t)(k + 1) / 2);
    for (int64_t g = 0; g < groups_of(k, group); g++) {
        int64_t first = g * group;
        int64_t n = k - first < group ? k - first : group;
        scales[g] = zeros ? fit_range(w + first, n, &zeros[g]) : nmlp_f32_to_f16(peak_of(w + first, n) / -8.0f);
        float scale = nmlp_f16_to_f32(scales[g]);
        int zero = zeros ? zeros[g] : 0;
        for (int64_t i = first; i < first + n; i++)
            q[i / 2] |= (uint8_t)((nearest(w[i], scale, -8 - zero, 7 - zero) + zero + 8) << (i & 1 ? 4 : 0));
    }
}

int64_t nmlp_quant_groups(const nmlp_view *view) { return groups_of(view->shape[1], view->group); }

enum { ZEROS_PER_WORD = 8 };

size_t nmlp_quant_zero_words(int64_t rows, int64_t groups) {
    return (size_t)(groups_of(rows, ZEROS_PER_WORD) * groups);
}

void nmlp_quant_zeros_pack(uint32_t *words, const int8_t *zeros, int64_t rows, int64_t groups) {
    memset(words, 0, nmlp_quant_zero_words(rows, groups) * sizeof *words);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++)
            words[r / ZEROS_PER_WORD * groups + g] |= (uint32_t)(zeros[r * groups + g] + 8) << r % ZEROS_PER_WORD * 4;
}

void nmlp_quant_zeros_unpack(int8_t *zeros, const void *words, int64_t rows, int64_t groups) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            uint32_t word;
            memcpy(&word, (const char *)words + (r / ZEROS_PER_WORD * groups + g) * (int64_t)sizeof word, sizeof word);
            zeros[r * groups + g] = (int8_t)((int)(word >> r % ZEROS_PER_WORD * 4 & 15u) - 8);
        }
}

size_t nmlp_quant_stored_bytes(const nmlp_view *view) {
    size_t zeros = view->zeros ? nmlp_quant_zero_words(view->shape[0], nmlp_quant_groups(view)) * sizeof(uint32_t) : 0;
    return nmlp_view_bytes(view) + nmlp_quant_scale_bytes(view) + zeros;
}

size_t nmlp_quant_scale_bytes(const nmlp_view *view) {
    if (nmlp_quant_scales_rows(view->dtype)) return (size_t)view->shape[0] * sizeof(float);
    if (view->dtype != NMLP_DTYPE_Q4) return 0;
    return (size_t)(view->shape[0] * groups_of(view->shape[1], view->group)) * sizeof(uint16_t);
}

void nmlp_quant_row_from_f32(const nmlp_view *view, int64_t row, const float *w) {
    void *to = (void *)(uintptr_t)nmlp_view_row(view, row);
    int64_t k = view->shape[1];
    if (view->dtype == NMLP_DTYPE_Q8)
        nmlp_quant_row_q8(to, (float *)(uintptr_t)view->scales + row, w, k);
    else if (view->dtype == NMLP_DTYPE_FP8)
        nmlp_quant_row_fp8(to, (float *)(uintptr_t)view->scales + row, w, k);
    else if (view->dtype == NMLP_DTYPE_Q6)
        nmlp_quant_row_q6(to, (float *)(uintptr_t)view->scales + row, w, k);
    else if (view->dtype == NMLP_DTYPE_Q4)
        nmlp_quant_row_q4(to, (uint16_t *)(uintptr_t)view->scales + row * groups_of(k, view->group),
                          view->zeros ? (int8_t *)(uintptr_t)view->zeros + row * groups_of(k, view->group) : NULL,
                          view->group, w, k);
    else
        nmlp_from_f32(to, view->dtype, w, (size_t)k);
}
