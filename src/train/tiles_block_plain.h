/* What AMX does with a block of tiles, in plain C. */
#ifndef NMLP_TRAIN_TILES_BLOCK_PLAIN_H
#define NMLP_TRAIN_TILES_BLOCK_PLAIN_H

#include "train/tiles_body.h"

static void block_begin(void) {}
static void block_end(void) {}

static void block_product(float *c, int64_t ldc, const uint16_t *a, const uint16_t *b, int64_t n_blocks,
                          bool accumulate) {
    for (int i = 0; i < MR && !accumulate; i++) memset(c + i * ldc, 0, NR * sizeof *c);
    for (int64_t block = 0; block < n_blocks; block++, a += 2 * TILE_ELEMS, b += TILE_K * NR) {
        for (int i = 0; i < MR; i++) {
            for (int p = 0; p < TILE_K; p += 2) { /* TDPBF16PS adds the two products of a pair */
                float even = nmlp_bf16_to_f32(a[i * TILE_K + p]);
                float odd = nmlp_bf16_to_f32(a[i * TILE_K + p + 1]);
                const uint16_t *pairs = b + p * NR;
                for (int j = 0; j < NR; j++)
                    c[i * ldc + j] += even * nmlp_bf16_to_f32(pairs[2 * j]) + odd * nmlp_bf16_to_f32(pairs[2 * j + 1]);
            }
        }
    }
}

#endif
