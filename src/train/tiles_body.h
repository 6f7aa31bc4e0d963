/* Matrix products in bf16 with f32 sums, in blocks of 32 x 32: what AMX tiles compute. A set includes one of
 * tiles_pack_plain.h and tiles_pack_avx512.h, which bring operands into the order below, and has block_begin, block_end
 * and block_product from its own file or from tiles_block_plain.h.
 *
 * B: strips of 32 columns; for every two rows p, p+1 the 32 pairs (p, p+1) of the columns, so that 16 columns are a
 * tile row. A: for every 32 rows and 32 columns two tiles of 16 rows. Both are padded with zeros. */
#ifndef NMLP_TRAIN_TILES_BODY_H
#define NMLP_TRAIN_TILES_BODY_H

#include <string.h>

#include "base/ints.h"
#include "tensor/dtype.h"
#include "train/ops_internal.h"

enum {
    NR = 32,
    MR = 32,
    TILE_K = 32,
    TILE_ELEMS = 512, /* 16 rows of 32 bf16 */
    KC = 512,
    MB = 96,
    A_ELEMS = MB * KC,    /* bf16 */
    SCRATCH = A_ELEMS / 2 /* nmlp_train_real */
};

static void block_begin(void);
static void block_end(void);
/* c [32,32], rows ldc apart, = or += A B over n_blocks times 32: A tiles in pairs from a on, B rows of 64 elements from
 * b on. */
static void block_product(float *c, int64_t ldc, const uint16_t *a, const uint16_t *b, int64_t n_blocks,
                          bool accumulate);
/* Strip of g's columns first..first+31. */
static void pack_strip(uint16_t *dst, const nmlp_train_b_packing *g, int64_t first);
/* m rows (at most 32) and k columns of A, or k rows and m columns where it is transposed: its blocks one after the
 * other. */
static void copy_group(uint16_t *dst, const float *a, int64_t lda, bool transposed, int64_t m, int64_t k);

static void pack_b(const nmlp_train_b_packing *g) {
    for (int64_t s = g->strip_begin; s < g->strip_end; s++)
        pack_strip((uint16_t *)(void *)g->packed + s * NR * g->b_rows, g, s * NR);
}

static void pack_a(const nmlp_train_a_packing *g) {
    for (int64_t i = g->group_begin; i < g->group_end; i++) {
        const float *a = g->a + i * MR * (g->transposed ? 1 : g->lda);
        copy_group((uint16_t *)(void *)g->packed + i * MR * g->a_cols, a, g->lda, g->transposed,
                   nmlp_min(MR, g->m - i * MR), g->k);
    }
}

static void store_block(const nmlp_train_product *g, const float *block, int64_t row, int64_t col, bool accumulate) {
    int64_t rows = nmlp_min(MR, g->m - row);
    int64_t cols = nmlp_min(NR, g->n - col);
    for (int64_t i = 0; i < rows; i++) {
        float *c = g->c + (row + i) * g->ldc + col;
        if (accumulate) {
            for (int64_t j = 0; j < cols; j++) c[j] += block[i * NR + j];
        } else {
            for (int64_t j = 0; j < cols; j++) c[j] = block[i * NR + j];
        }
    }
}

/* All strips with the groups of A in `a`; `edge` [32,32] takes blocks that do not fit into C. */
static void multiply_groups(const nmlp_train_product *g, const uint16_t *a, float *edge, int64_t row, int64_t m,
                            int64_t p0, int64_t k) {
    int64_t blocks = (k + TILE_K - 1) / TILE_K;
    bool accumulate = g->accumulate || p0 > 0;
    for (int64_t j = 0; j < g->n; j += NR) {
        const uint16_t *b = (const uint16_t *)(const void *)g->b + j * g->b_rows + p0 * NR;
        for (int64_t i = 0; i < m; i += MR) {
            const uint16_t *group = a + i / MR * blocks * 2 * TILE_ELEMS;
            if (m - i >= MR && g->n - j >= NR) {
                block_product(g->c + (row + i) * g->ldc + j, g->ldc, group, b, blocks, accumulate);
                continue;
            }
            block_product(edge, NR, group, b, blocks, false);
            store_block(g, edge, row + i, j, accumulate);
        }
    }
}

static void multiply(const nmlp_train_product *g) {
    float edge_block[MR * NR + 16];
    float *edge = (float *)(((uintptr_t)edge_block + 63) & ~(uintptr_t)63);
    uint16_t *a = (uint16_t *)(void *)g->scratch;
    block_begin();
    for (int64_t row = 0; g->packed_a && row < g->m; row += MB) {
        const uint16_t *packed = (const uint16_t *)(const void *)g->packed_a;
        multiply_groups(g, packed + row * g->b_rows, edge, row, nmlp_min(MB, g->m - row), 0, g->k);
    }
    for (int64_t row = 0; !g->packed_a && row < g->m; row += MB) {
        int64_t m = nmlp_min(MB, g->m - row);
        for (int64_t p0 = 0; p0 < g->k; p0 += KC) {
            int64_t k = nmlp_min(KC, g->k - p0);
            int64_t group_elems = (k + TILE_K - 1) / TILE_K * 2 * TILE_ELEMS;
            const float *from = g->a_transposed ? g->a + p0 * g->lda + row : g->a + row * g->lda + p0;
            for (int64_t i = 0; i < m; i += MR)
                copy_group(a + i / MR * group_elems, from + i * (g->a_transposed ? 1 : g->lda), g->lda, g->a_transposed,
                           nmlp_min(MR, m - i), k);
            multiply_groups(g, a, edge, row, m, p0, k);
        }
    }
    block_end();
}

#endif
