/* The amx set in plain C, for tests on machines without tiles. */
#include "train/tiles_body.h"

static void block_begin(void) {}
static void block_end(void) {}

static void block_product(float *c, const uint16_t *a, const uint16_t *b, int64_t n_blocks) {
    memset(c, 0, MR * NR * sizeof *c);
    for (int64_t block = 0; block < n_blocks; block++, a += 2 * TILE_ELEMS, b += TILE_K * NR) {
        for (int i = 0; i < MR; i++) {
            for (int p = 0; p < TILE_K; p += 2) { /* TDPBF16PS adds the two products of a pair */
                float even = nmlp_bf16_to_f32(a[i * TILE_K + p]);
                float odd = nmlp_bf16_to_f32(a[i * TILE_K + p + 1]);
                const uint16_t *pairs = b + p * NR;
                for (int j = 0; j < NR; j++)
                    c[i * NR + j] += even * nmlp_bf16_to_f32(pairs[2 * j]) + odd * nmlp_bf16_to_f32(pairs[2 * j + 1]);
            }
        }
    }
}

const nmlp_products nmlp_products_emu = {
    .name = "amx-emu",
    .strip = NR,
    .k_step = TILE_K,
    .multiply_scratch = SCRATCH,
    .pack_b = pack_b,
    .multiply = multiply,
};
