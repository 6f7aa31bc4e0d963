/* Matrix products in bf16 with f32 sums, in blocks of 32 x 32: what AMX tiles compute. Included by products_amx.c, which has the
 * instructions, and products_emu.c, which has them in C; each defines block_begin, block_end and block_product.
 *
 * B: strips of 32 columns; for every two rows p, p+1 the 32 pairs (p, p+1) of the columns, so that 16 columns are a tile row.
 * A: for every 32 rows and 32 columns two tiles of 16 rows. Both are padded with zeros. */
#ifndef NMLP_TRAIN_TILES_BODY_H
#define NMLP_TRAIN_TILES_BODY_H

#include <string.h>

#include "tensor/dtype.h"
#include "train/ops_int.h"

enum {
    NR = 32,
    MR = 32,
    TILE_K = 32,
    TILE_ELEMS = 512, /* 16 rows of 32 bf16 */
    KC = 512,
    MB = 96,
    A_ELEMS = MB * KC, /* bf16 */
    SCRATCH = A_ELEMS / 2 + MR * NR + 16
};

static void block_begin(void);
static void block_end(void);
/* c [32,32] = A B over n_blocks times 32: A tiles in pairs from a on, B rows of 64 elements from b on. */
static void block_product(float *c, const uint16_t *a, const uint16_t *b, int64_t n_blocks);

static inline uint32_t pair(float low, float high) {
    return (uint32_t)nmlp_f32_to_bf16(low) | (uint32_t)nmlp_f32_to_bf16(high) << 16;
}

static void pack_strip(uint32_t *dst, const nmlp_packing *g, int64_t first) {
    int64_t n = g->n - first < NR ? g->n - first : NR;
    int64_t row_step = g->transposed ? 1 : g->ldb;
    int64_t col_step = g->transposed ? g->ldb : 1;
    const float *b = g->b + first * col_step;
    for (int64_t p = 0; p < g->b_rows; p += 2, dst += NR) {
        const float *low = b + p * row_step;
        const float *high = low + row_step;
        if (p >= g->k) n = 0;
        for (int64_t j = 0; j < n; j++) dst[j] = pair(low[j * col_step], p + 1 < g->k ? high[j * col_step] : 0);
        for (int64_t j = n; j < NR; j++) dst[j] = 0;
    }
}

static void pack_b(const nmlp_packing *g) {
    for (int64_t s = g->strip_begin; s < g->strip_end; s++)
        pack_strip((uint32_t *)(void *)(g->packed + s * NR * g->b_rows), g, s * NR);
}

/* Rows row..row+m-1, columns p0..p0+k-1 of A; groups of 32 rows, blocks of 32 columns. */
static void copy_a(uint16_t *dst, const nmlp_product *g, int64_t row, int64_t m, int64_t p0, int64_t k) {
    int64_t blocks = (k + TILE_K - 1) / TILE_K;
    int64_t groups = (m + MR - 1) / MR;
    memset(dst, 0, (size_t)(groups * blocks * 2 * TILE_ELEMS) * sizeof *dst);
    for (int64_t i = 0; i < m && !g->a_transposed; i++) {
        const float *src = g->a + (row + i) * g->lda + p0;
        uint16_t *line = dst + i / MR * blocks * 2 * TILE_ELEMS + i % MR * TILE_K; /* a pair of tiles is 32 lines */
        for (int64_t p = 0; p < k; p++) line[p / TILE_K * 2 * TILE_ELEMS + p % TILE_K] = nmlp_f32_to_bf16(src[p]);
    }
    for (int64_t p = 0; p < k && g->a_transposed; p++) {
        const float *src = g->a + (p0 + p) * g->lda + row;
        uint16_t *column = dst + p / TILE_K * 2 * TILE_ELEMS + p % TILE_K;
        for (int64_t i = 0; i < m; i++)
            column[i / MR * blocks * 2 * TILE_ELEMS + i % MR * TILE_K] = nmlp_f32_to_bf16(src[i]);
    }
}

static void store_block(const nmlp_product *g, const float *block, int64_t row, int64_t col, bool accumulate) {
    int64_t rows = g->m - row < MR ? g->m - row : MR;
    int64_t cols = g->n - col < NR ? g->n - col : NR;
    for (int64_t i = 0; i < rows; i++) {
        float *c = g->c + (row + i) * g->ldc + col;
        if (accumulate) {
            for (int64_t j = 0; j < cols; j++) c[j] += block[i * NR + j];
        } else {
            for (int64_t j = 0; j < cols; j++) c[j] = block[i * NR + j];
        }
    }
}

static void multiply(const nmlp_product *g) {
    float *block = (float *)(((uintptr_t)g->scratch + 63) & ~(uintptr_t)63);
    uint16_t *a = (uint16_t *)(void *)(block + MR * NR);
    block_begin();
    for (int64_t row = 0; row < g->m; row += MB) {
        int64_t m = g->m - row < MB ? g->m - row : MB;
        for (int64_t p0 = 0; p0 < g->k; p0 += KC) {
            int64_t k = g->k - p0 < KC ? g->k - p0 : KC;
            int64_t blocks = (k + TILE_K - 1) / TILE_K;
            copy_a(a, g, row, m, p0, k);
            for (int64_t j = 0; j < g->n; j += NR) {
                const uint16_t *b = (const uint16_t *)(const void *)(g->b + j * g->b_rows) + p0 * NR;
                for (int64_t i = 0; i < m; i += MR) {
                    block_product(block, a + i / MR * blocks * 2 * TILE_ELEMS, b, blocks);
                    store_block(g, block, row + i, j, g->accumulate || p0 > 0);
                }
            }
        }
    }
    block_end();
}

#endif
