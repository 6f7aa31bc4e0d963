/* The amx set in plain C: its description, and the truth its tiles are compared with. */
#include "train/tiles_block_plain.h"
#include "train/tiles_pack_plain.h"

const nmlp_train_products nmlp_train_products_emu = {
    .name = "amx-emu",
    .strip = NR,
    .k_step = TILE_K,
    .per_real = 2,
    .multiply_scratch = SCRATCH,
    .pack_b = pack_b,
    .group = MR,
    .pack_a = pack_a,
    .multiply = multiply,
};
