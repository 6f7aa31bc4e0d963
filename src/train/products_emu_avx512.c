/* The amx set but for the tile instructions: lets a machine without them test how operands are brought into order. */
#include "train/tiles_block_plain.h"
#include "train/tiles_pack_avx512.h"

const nmlp_train_products nmlp_train_products_emu_avx512 = {
    .name = "amx-emu-avx512",
    .strip = NR,
    .k_step = TILE_K,
    .per_real = 2,
    .multiply_scratch = SCRATCH,
    .pack_b = pack_b,
    .group = MR,
    .pack_a = pack_a,
    .multiply = multiply,
};
