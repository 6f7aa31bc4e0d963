#include "compress/widen.h"

#include <stddef.h>

enum { PIECE = 1024 };

void nmlp_widen(double *dst, const nmlp_view *view) {
    float piece[PIECE];
    int64_t n = nmlp_view_elems(view);
    const char *from = view->data;
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = n - i < PIECE ? n - i : PIECE;
        nmlp_to_f32(piece, from + (size_t)i * nmlp_dtype_bytes(view->dtype), view->dtype, (size_t)m);
        for (int64_t j = 0; j < m; j++) dst[i + j] = (double)piece[j];
    }
}

void nmlp_narrow(void *dst, nmlp_dtype dtype, const double *src, int64_t n) {
    float piece[PIECE];
    char *to = dst;
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = n - i < PIECE ? n - i : PIECE;
        for (int64_t j = 0; j < m; j++) piece[j] = (float)src[i + j];
        nmlp_from_f32(to + (size_t)i * nmlp_dtype_bytes(dtype), dtype, piece, (size_t)m);
    }
}
