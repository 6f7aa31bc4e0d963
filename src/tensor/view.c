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

size_t nmlp_view_bytes(const nmlp_view *view) {
    return (size_t)nmlp_view_elems(view) * nmlp_dtype_bytes(view->dtype);
}

const void *nmlp_view_row(const nmlp_view *view, int64_t row) {
    return (const char *)view->data + (size_t)(row * view->shape[1]) * nmlp_dtype_bytes(view->dtype);
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

int64_t nmlp_view_first_nonfinite(const nmlp_view *view) {
    int64_t n = nmlp_view_elems(view);
    if (view->dtype == NMLP_DTYPE_F32) {
        const uint32_t *words = view->data;
        for (int64_t i = 0; i < n; i++)
            if (nonfinite32(words[i])) return i;
        return -1;
    }
    uint16_t exponent = view->dtype == NMLP_DTYPE_BF16 ? 0x7f80u : 0x7c00u;
    const uint16_t *halves = view->data;
    for (int64_t i = 0; i < n; i++)
        if ((halves[i] & exponent) == exponent) return i;
    return -1;
}
