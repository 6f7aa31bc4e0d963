/* Operands of tiles brought into order, in plain C. */
#ifndef NMLP_TRAIN_TILES_PACK_PLAIN_H
#define NMLP_TRAIN_TILES_PACK_PLAIN_H

#include "train/tiles_body.h"

static void pack_strip(uint16_t *dst, const nmlp_train_b_packing *g, int64_t first) {
    int64_t row_step = g->transposed ? 1 : g->ldb;
    int64_t col_step = g->transposed ? g->ldb : 1;
    for (int64_t p = 0; p < g->b_rows; p++) {
        for (int64_t j = 0; j < NR; j++) {
            bool inside = p < g->k && first + j < g->n;
            dst[p / 2 * 2 * NR + 2 * j + p % 2] =
                inside ? nmlp_f32_to_bf16(g->b[p * row_step + (first + j) * col_step]) : 0;
        }
    }
}

static void copy_group(uint16_t *dst, const float *a, int64_t lda, bool transposed, int64_t m, int64_t k) {
    int64_t blocks = (k + TILE_K - 1) / TILE_K;
    int64_t row_step = transposed ? 1 : lda;
    int64_t col_step = transposed ? lda : 1;
    for (int64_t i = 0; i < MR; i++) {
        for (int64_t p = 0; p < blocks * TILE_K; p++) {
            bool inside = i < m && p < k;
            dst[p / TILE_K * 2 * TILE_ELEMS + i * TILE_K + p % TILE_K] =
                inside ? nmlp_f32_to_bf16(a[i * row_step + p * col_step]) : 0;
        }
    }
}

#endif
