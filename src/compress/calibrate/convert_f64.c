#include "compress/calibrate/convert_f64.h"

#include <stddef.h>

enum { PIECE = 1024 };

struct widening {
    double *dst;
    const nmlp_view *view;
};

static void widen_elems(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct widening *w = ctx;
    const char *from = w->view->data;
    float piece[PIECE];
    (void)thread;
    for (int64_t i = begin; i < end; i += PIECE) {
        int64_t m = end - i < PIECE ? end - i : PIECE;
        nmlp_to_f32(piece, from + (size_t)i * nmlp_dtype_bytes(w->view->dtype), w->view->dtype, (size_t)m);
        for (int64_t j = 0; j < m; j++) w->dst[i + j] = (double)piece[j];
    }
}

void nmlp_widen(nmlp_pool *pool, double *dst, const nmlp_view *view) {
    struct widening w = {.dst = dst, .view = view};
    nmlp_pool_for(pool, nmlp_view_elems(view), 64 * PIECE, widen_elems, &w);
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
