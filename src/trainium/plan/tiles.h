/* Shorthand for building kernels: an axis cut into blocks of tiles, with edges.
 *
 * Sizes stay plain constants where the axis divides evenly, so that such programs read without clamps. */
#ifndef NMLP_TRAINIUM_PLAN_TILES_H
#define NMLP_TRAINIUM_PLAN_TILES_H

#include "base/ints.h"
#include "trainium/neuron/machine.h"
#include "trainium/neuron/program.h"

typedef struct nmlp_axis {
    int64_t n;     /* elements */
    int64_t tile;  /* elements per tile */
    int64_t block; /* elements per block: a multiple of tile */
} nmlp_axis;

/* tiles_per_block is cut down to what the axis has. */
static inline nmlp_axis nmlp_axis_of(int64_t n, int64_t tile, int64_t tiles_per_block) {
    int64_t tiles = nmlp_ceil_div(n, tile);
    return (nmlp_axis){n, tile, tile * (tiles_per_block < tiles ? tiles_per_block : tiles)};
}

static inline int64_t nmlp_axis_tiles(nmlp_axis a) { return nmlp_ceil_div(a.n, a.tile); }
static inline int64_t nmlp_axis_blocks(nmlp_axis a) { return nmlp_ceil_div(a.n, a.block); }
static inline int64_t nmlp_axis_tiles_per_block(nmlp_axis a) { return a.block / a.tile; }

/* The first element of tile `t` of block `b`; a variable of -1 stands for 0. */
static inline nmlp_affine nmlp_axis_start(nmlp_axis a, int b, int t) {
    nmlp_affine at = b < 0 ? nmlp_affine_const(0) : nmlp_affine_var(b, a.block);
    return t < 0 ? at : nmlp_affine_plus(at, nmlp_affine_var(t, a.tile));
}

/* Tiles in block b. */
static inline nmlp_size nmlp_axis_trips(nmlp_axis a, int b) {
    if (b < 0) return nmlp_size_const(nmlp_axis_tiles(a));
    if (a.n % a.block == 0) return nmlp_size_const(nmlp_axis_tiles_per_block(a));
    return nmlp_size_until(nmlp_axis_tiles_per_block(a), a.n, nmlp_axis_start(a, b, -1), a.tile);
}

/* Elements in tile t of block b. */
static inline nmlp_size nmlp_axis_tile_size(nmlp_axis a, int b, int t) {
    if (a.n % a.tile == 0) return nmlp_size_const(a.tile);
    return nmlp_size_until(a.tile, a.n, nmlp_axis_start(a, b, t), 1);
}

/* Elements in block b. */
static inline nmlp_size nmlp_axis_block_size(nmlp_axis a, int b) {
    if (a.n % a.block == 0) return nmlp_size_const(a.block);
    return nmlp_size_until(a.block, a.n, nmlp_axis_start(a, b, -1), 1);
}

static inline nmlp_affine nmlp_at(int var) { return nmlp_affine_var(var, 1); }

#endif
