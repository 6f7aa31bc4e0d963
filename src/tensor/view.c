#include "tensor/view.h"

#include <inttypes.h>
#include <stdio.h>

nmlp_view nmlp_view_2d(const void *data, nmlp_dtype dtype, int64_t rows, int64_t cols) {
    return (nmlp_view){.data = data, .dtype = dtype, .n_dims = 2, .shape = {rows, cols}};
}

int64_t nmlp_view_elems(const nmlp_view *view) {
    int64_t n = 1;
    for (int d = 0; d < view->n_dims; d++) n *= view->shape[d];
    return n;
}

/* A row of Q4 begins with a byte of its own, those of the other narrow types with a word. */
static size_t row_bytes(const nmlp_view *view) {
    size_t n = (size_t)view->shape[view->n_dims - 1];
    if (view->dtype >= NMLP_DTYPE_Q6) return ((size_t)nmlp_dtype_bits(view->dtype) * n + 31) / 32 * sizeof(uint32_t);
    return view->dtype == NMLP_DTYPE_Q4 ? (n + 1) / 2 : n * nmlp_dtype_bytes(view->dtype);
}

size_t nmlp_view_bytes(const nmlp_view *view) {
    if (nmlp_dtype_bits(view->dtype) < 8) return (size_t)view->shape[0] * row_bytes(view);
    return (size_t)nmlp_view_elems(view) * nmlp_dtype_bytes(view->dtype);
}

const void *nmlp_view_row(const nmlp_view *view, int64_t row) {
    return (const char *)view->data + (size_t)row * row_bytes(view);
}

nmlp_view nmlp_view_rows(const nmlp_view *view, int64_t first, int64_t n) {
    nmlp_view rows = *view;
    rows.data = nmlp_view_row(view, first);
    rows.shape[0] = n;
    if (!nmlp_dtype_is_quantised(view->dtype)) return rows;
    int64_t before = view->group > 0 ? first * ((view->shape[1] + view->group - 1) / view->group) : 0;
    rows.scales = view->dtype == NMLP_DTYPE_Q4 ? (const void *)((const uint16_t *)view->scales + before)
                                               : (const void *)((const float *)view->scales + first);
    if (view->per_group) rows.per_group = view->per_group + before;
    return rows;
}

bool nmlp_view_contains(const nmlp_view *view, const void *address) {
    uintptr_t begin = (uintptr_t)view->data, at = (uintptr_t)address;
    return at >= begin && at - begin < nmlp_view_bytes(view);
}

void nmlp_shape_text(char text[NMLP_SHAPE_TEXT_MAX], const int64_t *shape, int n_dims) {
    size_t at = 0;
    text[at++] = '[';
    for (int d = 0; d < n_dims; d++) {
        int n = snprintf(text + at, NMLP_SHAPE_TEXT_MAX - at, d ? ",%" PRId64 : "%" PRId64, shape[d]);
        if (n > 0) at += (size_t)n;
    }
    snprintf(text + at, NMLP_SHAPE_TEXT_MAX - at, "]");
}

/* All exponent bits set means NaN or Inf, in each of the three formats. */
static bool nonfinite32(uint32_t bits) { return (bits & 0x7f800000u) == 0x7f800000u; }

enum { SCAN_BLOCK = 512 };

/* Whether any of n values has its exponent all ones: without a way out, so that it becomes vector code. */
static bool any_nonfinite32(const uint32_t *words, int64_t n) {
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) found |= nonfinite32(words[i]);
    return found != 0;
}

static bool any_nonfinite16(const uint16_t *halves, int64_t n, uint16_t exponent) {
    uint16_t found = 0;
    for (int64_t i = 0; i < n; i++) found |= (uint16_t)((halves[i] & exponent) == exponent);
    return found != 0;
}

static int64_t first_nonfinite32(const uint32_t *words, int64_t n) {
    for (int64_t at = 0; at < n; at += SCAN_BLOCK) {
        int64_t end = at + SCAN_BLOCK < n ? at + SCAN_BLOCK : n;
        if (!any_nonfinite32(words + at, end - at)) continue;
        while (!nonfinite32(words[at])) at++;
        return at;
    }
    return -1;
}

static int64_t first_nonfinite16(const uint16_t *halves, int64_t n, uint16_t exponent) {
    for (int64_t at = 0; at < n; at += SCAN_BLOCK) {
        int64_t end = at + SCAN_BLOCK < n ? at + SCAN_BLOCK : n;
        if (!any_nonfinite16(halves + at, end - at, exponent)) continue;
        while ((halves[at] & exponent) != exponent) at++;
        return at;
    }
    return -1;
}

static int64_t first_nan_fp8(const uint8_t *codes, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (nmlp_fp8_is_nan(codes[i])) return i;
    return -1;
}

/* Of a quantised matrix: the first element whose scale is not a number, or of FP8 that is none itself. */
static int64_t first_bad_scale(const nmlp_view *view) {
    int64_t k = view->shape[1];
    if (view->dtype != NMLP_DTYPE_Q4) {
        int64_t row = first_nonfinite32(view->scales, view->shape[0]);
        if (row >= 0) return row * k;
        return view->dtype == NMLP_DTYPE_FP8 ? first_nan_fp8(view->data, nmlp_view_elems(view)) : -1;
    }
    int64_t per_row = (k + view->group - 1) / view->group;
    int64_t at = first_nonfinite16(view->scales, view->shape[0] * per_row, 0x7c00u);
    return at < 0 ? -1 : at / per_row * k + at % per_row * view->group;
}

int64_t nmlp_view_first_nonfinite(const nmlp_view *view) {
    int64_t n = nmlp_view_elems(view);
    if (nmlp_dtype_is_quantised(view->dtype)) return first_bad_scale(view);
    if (view->dtype == NMLP_DTYPE_F32) return first_nonfinite32(view->data, n);
    return first_nonfinite16(view->data, n, view->dtype == NMLP_DTYPE_BF16 ? 0x7f80u : 0x7c00u);
}
