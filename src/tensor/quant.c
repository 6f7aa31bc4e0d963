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

nmlp_view nmlp_quant_view_multiplied(const uint8_t *data, nmlp_dtype dtype, const float *scales,
                                     const int8_t *multipliers, int64_t rows, int64_t cols) {
    nmlp_view view = nmlp_view_2d(data, dtype, rows, cols);
    view.scales = scales;
    view.group = NMLP_QUANT_MULTIPLIER_GROUP;
    view.per_group = multipliers;
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

/* The code of an input in a row of words: in one byte or across two. */
static int code_at(const uint8_t *row, int bits, int64_t i) {
    int64_t at = bits * i / 8;
    int shift = (int)(bits * i % 8);
    unsigned found = row[at] >> shift;
    if (shift > 8 - bits) found |= (unsigned)row[at + 1] << (8 - shift);
    return (int)(found & ((1u << bits) - 1u)) - (1 << (bits - 1));
}

void nmlp_quant_q8_codes(int8_t *codes, const nmlp_view *view, int64_t row, int64_t first, int64_t n) {
    const uint8_t *words = nmlp_view_row(view, row);
    const int bits = nmlp_dtype_bits(view->dtype), step = nmlp_quant_multiplier_step(view->dtype);
    const int8_t *multipliers = view->per_group ? view->per_group + row * groups_of(view->shape[1], view->group) : NULL;
    for (int64_t i = first; i < first + n; i++) {
        int multiplier = multipliers ? step * multipliers[i / view->group] : 1;
        codes[i - first] = (int8_t)(multiplier * code_at(words, bits, i));
    }
}

void nmlp_quant_put_code(void *row, nmlp_dtype dtype, int64_t i, int code) {
    const int bits = nmlp_dtype_bits(dtype);
    uint8_t *at = (uint8_t *)row + bits * i / 8;
    unsigned stored = (((unsigned)code + (1u << (bits - 1))) & ((1u << bits) - 1u)) << (bits * i % 8);
    at[0] |= (uint8_t)stored;
    if (stored > 255u) at[1] |= (uint8_t)(stored >> 8);
}

static void widened_to_f32(float *dst, const nmlp_view *view, int64_t row) {
    enum { CHUNK = 64 };
    float scale = ((const float *)view->scales)[row];
    int8_t codes[CHUNK];
    for (int64_t first = 0; first < view->shape[1]; first += CHUNK) {
        int64_t n = view->shape[1] - first < CHUNK ? view->shape[1] - first : CHUNK;
        nmlp_quant_q8_codes(codes, view, row, first, n);
        for (int64_t i = 0; i < n; i++) dst[first + i] = (float)codes[i] * scale;
    }
}

static void q4_to_f32(float *dst, const nmlp_view *view, int64_t row) {
    const uint8_t *q = nmlp_view_row(view, row);
    int64_t k = view->shape[1];
    const uint16_t *scales = (const uint16_t *)view->scales + row * groups_of(k, view->group);
    const int8_t *zeros = view->per_group ? view->per_group + row * groups_of(k, view->group) : NULL;
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
    else if (nmlp_quant_widens_to_q8(view->dtype))
        widened_to_f32(dst, view, row);
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
    for (int64_t i = 0; i < k; i++) nmlp_quant_put_code(q, NMLP_DTYPE_Q6, i, nearest(w[i], *scale, lowest, highest));
}

static float squared_error(const float *w, int64_t n, float scale, nmlp_dtype dtype) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float error = w[i] - scale * (float)nearest(w[i], scale, nmlp_quant_lowest(dtype), nmlp_quant_highest(dtype));
        sum += error * error;
    }
    return sum;
}

/* The best of those that put the largest of a group at one end of the codes or the other, and of their neighbours.
 * `step` is that of multipliers. */
static int nearest_multiplier(const float *w, int64_t n, float step, nmlp_dtype dtype) {
    const int lowest = nmlp_quant_multiplier_lowest(dtype), highest = nmlp_quant_multiplier_highest(dtype);
    const int ends[] = {nmlp_quant_lowest(dtype), nmlp_quant_highest(dtype)};
    float least = INFINITY, peak = peak_of(w, n);
    int best = 1;
    for (int end = 0; end < 2; end++) {
        int ideal = nearest(peak / (float)ends[end], step, lowest, highest);
        for (int m = ideal - 1; m <= ideal + 1; m++) {
            if (m == 0 || m < lowest || m > highest) continue;
            float error = squared_error(w, n, step * (float)m, dtype);
            if (!(error < least)) continue;
            least = error;
            best = m;
        }
    }
    return best;
}

void nmlp_quant_row_multiplied(uint8_t *q, nmlp_dtype dtype, float *scale, int8_t *multipliers, const float *w,
                               int64_t k) {
    const int lowest = nmlp_quant_lowest(dtype), highest = nmlp_quant_highest(dtype);
    const int group = NMLP_QUANT_MULTIPLIER_GROUP, unit = nmlp_quant_multiplier_step(dtype);
    *scale = peak_of(w, k) / (float)(lowest * nmlp_quant_multiplier_highest(dtype) * unit);
    memset(q, 0, nmlp_view_bytes(&(nmlp_view){.dtype = dtype, .n_dims = 2, .shape = {1, k}}));
    for (int64_t g = 0; g < groups_of(k, group); g++) {
        int64_t first = g * group, n = k - first < group ? k - first : group;
        float step = *scale * (float)unit;
        int multiplier = nearest_multiplier(w + first, n, step, dtype);
        multipliers[g] = (int8_t)multiplier;
        for (int64_t i = first; i < first + n; i++)
            nmlp_quant_put_code(q, dtype, i, nearest(w[i], step * (float)multiplier, lowest, highest));
    }
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

size_t nmlp_quant_per_group_bytes(const nmlp_view *view) {
    return view->per_group ? (size_t)(view->shape[0] * nmlp_quant_groups(view)) : 0;
}

enum { NUMBERS_PER_WORD = 8 };

/* What is added to a zero point or a multiplier where it is stored. */
static int stored_offset(nmlp_dtype dtype) { return dtype == NMLP_DTYPE_Q4 ? 8 : 7; }

size_t nmlp_quant_per_group_words(int64_t rows, int64_t groups) {
    return (size_t)(groups_of(rows, NUMBERS_PER_WORD) * groups);
}

void nmlp_quant_per_group_pack(uint32_t *words, const nmlp_view *view) {
    int64_t rows = view->shape[0], groups = nmlp_quant_groups(view);
    int offset = stored_offset(view->dtype);
    memset(words, 0, nmlp_quant_per_group_words(rows, groups) * sizeof *words);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++)
            words[r / NUMBERS_PER_WORD * groups + g] |= (uint32_t)(view->per_group[r * groups + g] + offset)
                                                        << r % NUMBERS_PER_WORD * 4;
}

void nmlp_quant_per_group_unpack(int8_t *values, nmlp_dtype dtype, const void *words, int64_t rows, int64_t groups) {
    int offset = stored_offset(dtype);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            uint32_t word;
            memcpy(&word, (const char *)words + (r / NUMBERS_PER_WORD * groups + g) * (int64_t)sizeof word,
                   sizeof word);
            values[r * groups + g] = (int8_t)((int)(word >> r % NUMBERS_PER_WORD * 4 & 15u) - offset);
        }
}

size_t nmlp_quant_stored_bytes(const nmlp_view *view) {
    bool has = view->per_group || nmlp_quant_has_multipliers(view->dtype);
    size_t words = has ? nmlp_quant_per_group_words(view->shape[0], nmlp_quant_groups(view)) : 0;
    return nmlp_view_bytes(view) + nmlp_quant_scale_bytes(view) + words * sizeof(uint32_t);
}

size_t nmlp_quant_scale_bytes(const nmlp_view *view) {
    if (nmlp_quant_scales_rows(view->dtype)) return (size_t)view->shape[0] * sizeof(float);
    if (view->dtype != NMLP_DTYPE_Q4) return 0;
    return (size_t)(view->shape[0] * groups_of(view->shape[1], view->group)) * sizeof(uint16_t);
}

void nmlp_quant_row_from_f32(const nmlp_view *view, int64_t row, const float *w) {
    void *to = (void *)(uintptr_t)nmlp_view_row(view, row);
    int64_t k = view->shape[1];
    float *scale = (float *)(uintptr_t)view->scales + row; /* of types with one for a row */
    int8_t *per_group = view->per_group ? (int8_t *)(uintptr_t)view->per_group + row * groups_of(k, view->group) : NULL;
    if (view->dtype == NMLP_DTYPE_Q8)
        nmlp_quant_row_q8(to, scale, w, k);
    else if (view->dtype == NMLP_DTYPE_FP8)
        nmlp_quant_row_fp8(to, scale, w, k);
    else if (view->dtype == NMLP_DTYPE_Q6)
        nmlp_quant_row_q6(to, scale, w, k);
    else if (nmlp_quant_has_multipliers(view->dtype))
        nmlp_quant_row_multiplied(to, view->dtype, scale, per_group, w, k);
    else if (view->dtype == NMLP_DTYPE_Q4)
        nmlp_quant_row_q4(to, (uint16_t *)(uintptr_t)view->scales + row * groups_of(k, view->group), per_group,
                          view->group, w, k);
    else
        nmlp_from_f32(to, view->dtype, w, (size_t)k);
}
