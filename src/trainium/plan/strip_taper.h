/* Weights that have room of their own on chip, and the blocks in which they come.
 *
 * Each DMA costs the engines some time per row, so blocks should be long; but a product can begin only when its block
 * is complete, so the work of a long block is still to be done when the next ones have come. Towards the end nothing
 * hides that. The blocks therefore shrink: each is as long as the tensor engine can make up for before the last byte is
 * there. */
#ifndef NMLP_TRAINIUM_PLAN_STRIP_TAPER_H
#define NMLP_TRAINIUM_PLAN_STRIP_TAPER_H

#include <stdbool.h>

#include "trainium/neuron/machine.h"
#include "trainium/neuron/pack.h"

enum { NMLP_TAPER_BLOCKS_MAX = 32 };

/* A packed weight of one plane is a sequence of tile rows: tile (n, k) is number n * k_tiles + k. */
typedef struct nmlp_taper {
    int64_t end[NMLP_TAPER_BLOCKS_MAX]; /* tile rows up to the end of each block, in order */
    int n;
} nmlp_taper;

/* The weights of one product. */
typedef struct nmlp_taper_weights {
    int64_t tile_rows;
    int64_t most;     /* tile rows one DMA may move */
    double row_bytes; /* per partition */
    double tensor_ns; /* of the product of one tile row */
    double turn_ns;   /* from its last product to the first one that needs the result */
} nmlp_taper_weights;

/* `rows` of the strip, `moving`: the weights move and the rows are stationary. */
nmlp_taper_weights nmlp_taper_weights_of(const nmlp_machine *m, const nmlp_pack *pack, int64_t rows, bool moving,
                                         size_t elem_bytes);
/* Blocks of the last segments of a kernel, in order of use; the very last block has `least` tile rows. False where
 * there would be too many. */
bool nmlp_taper_blocks(nmlp_taper *tapers, const nmlp_taper_weights *segments, int n, int64_t least,
                       const nmlp_machine *m);
/* The first column tile behind the last block of `cap` tile rows or more: what comes before may as well pass through a
 * ring in blocks of that length. Drops the blocks before it. */
int64_t nmlp_taper_cut(nmlp_taper *taper, int64_t k_tiles, int64_t cap);

#endif
