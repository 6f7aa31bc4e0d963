/* Matrix product on one thread. B lies in strips of two vectors' width; a block of A is copied so that its rows do not
 * share cache sets; the inner loop keeps MR x 2 vectors of C in registers. Sums run over k in one fixed order. */
#ifndef NMLP_TRAIN_GEMM_BODY_H
#define NMLP_TRAIN_GEMM_BODY_H

#include <string.h>

#include "train/ops.h"

/* VEC_BYTES and MR come from the including file. */
typedef nmlp_train_real vec __attribute__((vector_size(VEC_BYTES), aligned(sizeof(nmlp_train_real)), may_alias));
enum {
    VL = VEC_BYTES / sizeof(nmlp_train_real),
    NR = 2 * VL,
    KC = 256,
    A_STRIDE = KC + 64 / sizeof(nmlp_train_real), /* one cache line more, so that rows lie in different sets */
    MB = 8 * MR                                   /* rows of A copied at once */
};

static void pack_strip_transposed(nmlp_train_real *dst, const nmlp_train_real *b, int64_t ldb, int64_t k, int64_t n) {
    enum { STEP = 16 };
    for (int64_t p0 = 0; p0 < k; p0 += STEP) {
        int64_t steps = k - p0 < STEP ? k - p0 : STEP;
        for (int64_t j = 0; j < n; j++) {
            const nmlp_train_real *src = b + j * ldb + p0;
            nmlp_train_real *to = dst + p0 * NR + j;
            for (int64_t p = 0; p < steps; p++) to[p * NR] = src[p];
        }
        for (int64_t p = p0; p < p0 + steps; p++)
            for (int64_t j = n; j < NR; j++) dst[p * NR + j] = 0;
    }
}

static void pack_strip_plain(nmlp_train_real *dst, const nmlp_train_real *b, int64_t ldb, int64_t k, int64_t n) {
    for (int64_t p = 0; p < k; p++) {
        if (n == NR) {
            memcpy(dst + p * NR, b + p * ldb, NR * sizeof *dst);
        } else {
            for (int64_t j = 0; j < NR; j++) dst[p * NR + j] = j < n ? b[p * ldb + j] : 0;
        }
    }
}

static void pack_b(const nmlp_train_b_packing *g) {
    for (int64_t s = g->strip_begin; s < g->strip_end; s++) {
        int64_t first = s * NR;
        int64_t n = g->n - first < NR ? g->n - first : NR;
        nmlp_train_real *dst = g->packed + s * NR * g->b_rows;
        if (g->transposed) {
            pack_strip_transposed(dst, g->b + first * g->ldb, g->ldb, g->k, n);
        } else {
            pack_strip_plain(dst, g->b + first, g->ldb, g->k, n);
        }
    }
}

/* c [MR,NR] = or += A B; A element (i,p) at a[i*row_step + p*k_step], both constant where this is inlined. */
static inline __attribute__((always_inline)) void micro(const nmlp_train_real *a, const int64_t row_step,
                                                        const int64_t k_step, const nmlp_train_real *b, int64_t k,
                                                        nmlp_train_real *c, int64_t ldc, bool accumulate) {
    vec sum[MR][2];
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
        sum[i][0] = (vec){0};
        sum[i][1] = (vec){0};
    }
    for (int64_t p = 0; p < k; p++) {
        vec b0 = *(const vec *)(b + p * NR);
        vec b1 = *(const vec *)(b + p * NR + VL);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            nmlp_train_real scalar = a[i * row_step + p * k_step];
            sum[i][0] += scalar * b0;
            sum[i][1] += scalar * b1;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
        vec *c0 = (vec *)(c + i * ldc);
        vec *c1 = (vec *)(c + i * ldc + VL);
        if (accumulate) {
            sum[i][0] += *c0;
            sum[i][1] += *c1;
        }
        *c0 = sum[i][0];
        *c1 = sum[i][1];
    }
}

/* Plain A: row tiles [MR][A_STRIDE]. Transposed A: row tiles [KC][MR]. Rows past m are zeros. */
static void copy_a(nmlp_train_real *dst, const nmlp_train_product *g, int64_t row, int64_t m, int64_t p0, int64_t k) {
    for (int64_t i0 = 0; i0 < m; i0 += MR, dst += MR * A_STRIDE) {
        int64_t rows = m - i0 < MR ? m - i0 : MR;
        if (!g->a_transposed) {
            for (int64_t i = 0; i < MR; i++) {
                if (i < rows) {
                    memcpy(dst + i * A_STRIDE, g->a + (row + i0 + i) * g->lda + p0, (size_t)k * sizeof *dst);
                } else {
                    memset(dst + i * A_STRIDE, 0, (size_t)k * sizeof *dst);
                }
            }
            continue;
        }
        for (int64_t p = 0; p < k; p++) {
            const nmlp_train_real *src = g->a + (p0 + p) * g->lda + row + i0;
            for (int64_t i = 0; i < MR; i++) dst[p * MR + i] = i < rows ? src[i] : 0;
        }
    }
}

static void micro_any(const nmlp_train_product *g, const nmlp_train_real *a, const nmlp_train_real *b, int64_t k,
                      nmlp_train_real *c, int64_t ldc, bool accumulate) {
    if (g->a_transposed) {
        micro(a, 1, MR, b, k, c, ldc, accumulate);
    } else {
        micro(a, A_STRIDE, 1, b, k, c, ldc, accumulate);
    }
}

static void edge_tile(const nmlp_train_product *g, const nmlp_train_real *a, const nmlp_train_real *b, int64_t k,
                      nmlp_train_real *c, int64_t rows, int64_t cols, bool accumulate) {
    nmlp_train_real tile[MR * NR];
    micro_any(g, a, b, k, tile, NR, false);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++)
            c[i * g->ldc + j] = accumulate ? c[i * g->ldc + j] + tile[i * NR + j] : tile[i * NR + j];
    }
}

/* All strips of one copied block of A. */
static void multiply_block(const nmlp_train_product *g, int64_t row, int64_t m, int64_t p0, int64_t k) {
    bool accumulate = g->accumulate || p0 > 0;
    for (int64_t j = 0; j < g->n; j += NR) {
        const nmlp_train_real *b = g->b + j * g->b_rows + p0 * NR;
        int64_t cols = g->n - j < NR ? g->n - j : NR;
        for (int64_t i = 0; i < m; i += MR) {
            const nmlp_train_real *a = g->scratch + i * A_STRIDE;
            nmlp_train_real *c = g->c + (row + i) * g->ldc + j;
            int64_t rows = m - i < MR ? m - i : MR;
            if (rows == MR && cols == NR) {
                micro_any(g, a, b, k, c, g->ldc, accumulate);
            } else {
                edge_tile(g, a, b, k, c, rows, cols, accumulate);
            }
        }
    }
}

static void multiply(const nmlp_train_product *g) {
    for (int64_t row = 0; row < g->m; row += MB) {
        int64_t m = g->m - row < MB ? g->m - row : MB;
        for (int64_t p0 = 0; p0 < g->k; p0 += KC) {
            int64_t k = g->k - p0 < KC ? g->k - p0 : KC;
            copy_a(g->scratch, g, row, m, p0, k);
            multiply_block(g, row, m, p0, k);
        }
    }
}

#endif
