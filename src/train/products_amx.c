/* Products on AMX tiles: bf16 operands, f32 sums. */
#include "kernels/isa/amx/tile_config_amx.h"
#include "train/tiles_pack_avx512.h"

static void block_begin(void) { nmlp_amx_begin(); }

static void block_end(void) { nmlp_amx_end(); }

/* Tiles 0..3 are C (row half, column half), 4 and 5 A, 6 and 7 B. */
static void block_product(float *c, int64_t ldc, const uint16_t *a, const uint16_t *b, int64_t n_blocks,
                          bool accumulate) {
    size_t stride = (size_t)ldc * sizeof *c;
    nmlp_amx_settle_memory();
    if (accumulate) {
        _tile_loadd(0, c, stride);
        _tile_loadd(1, c + 16, stride);
        _tile_loadd(2, c + 16 * ldc, stride);
        _tile_loadd(3, c + 16 * ldc + 16, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t block = 0; block < n_blocks; block++, a += 2 * TILE_ELEMS, b += TILE_K * NR) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 32, 128);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + TILE_ELEMS, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, stride);
    _tile_stored(1, c + 16, stride);
    _tile_stored(2, c + 16 * ldc, stride);
    _tile_stored(3, c + 16 * ldc + 16, stride);
    nmlp_amx_settle_memory();
}

const nmlp_train_products nmlp_train_products_amx = {
    .name = "amx",
    .strip = NR,
    .k_step = TILE_K,
    .per_real = 2,
    .multiply_scratch = SCRATCH,
    .pack_b = pack_b,
    .group = MR,
    .pack_a = pack_a,
    .multiply = multiply,
};
