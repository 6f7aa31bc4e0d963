/* Shared by the products of a strip: loops around a tile, and the operands they point at. */
#ifndef NMLP_TRAINIUM_PLAN_STRIP_LOOPS_H
#define NMLP_TRAINIUM_PLAN_STRIP_LOOPS_H

#include "trainium/plan/strip.h"

/* DMA queues; x has number 1. The last store does not wait until the one before it is issued. */
enum { NMLP_WEIGHT_QUEUE = 0, NMLP_X_QUEUE = 1, NMLP_STORE_QUEUE = 2, NMLP_LAST_QUEUE = 3 };

/* Loop variables around one tile of a product. */
typedef struct nmlp_tile_loops {
    int block, n, st, q; /* weight block, column tile in it, row tile, rows of it */
    nmlp_size columns;   /* of the column tile */
    nmlp_size rows;
    nmlp_affine first; /* column tile of the block */
    nmlp_size tiles;   /* in the block */
    nmlp_affine at;    /* first element of the block in the packed tensor */
} nmlp_tile_loops;

/* "<stream>_<suffix>", the name of a loop. */
const char *nmlp_strip_label(char out[NMLP_NAME_MAX], const nmlp_strip_stream *w, const char *suffix);
/* Opens the loop over weight blocks; each is one DMA. `out` says which columns. Then that over the column tiles of the
 * block; then rows of the strip, or pieces of them that fit a stationary operand, whose first row in the tensor it
 * returns. */
void nmlp_strip_begin_blocks(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand in, nmlp_strip_operand out,
                             nmlp_tile_loops *l);
void nmlp_strip_begin_tiles(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_tile_loops *l);
int nmlp_strip_begin_rows(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_tile_loops *l);
nmlp_affine nmlp_strip_begin_row_pieces(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_tile_loops *l, const char *st,
                                        const char *q);
/* Of the loop over the contraction, and partitions of its tile k. */
nmlp_size nmlp_strip_contraction_trips(nmlp_strip_operand in);
nmlp_size nmlp_strip_contraction_parts(nmlp_strip_operand in, int k);
/* Tile k of the contraction in the weight block; a tile of an activation; the accumulator. */
nmlp_buf_ref nmlp_strip_weight_tile(const nmlp_strip *b, const nmlp_strip_stream *w, const nmlp_tile_loops *l,
                                    int plane, int k, nmlp_size parts);
nmlp_buf_ref nmlp_strip_held_tile(const nmlp_strip *b, nmlp_strip_operand a, nmlp_affine tile, nmlp_size parts, int st);
nmlp_buf_ref nmlp_strip_accumulator(const nmlp_strip *b, nmlp_size parts, nmlp_size columns);
/* acc[columns; rows] = one column tile of w^T in, summed over the contraction in PSUM. */
nmlp_buf_ref nmlp_strip_contract(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand in,
                                 const nmlp_tile_loops *l, int plane);
void nmlp_strip_end_loops(nmlp_strip *b, int n);
/* The column tile that the loops point at, counted from the first of the tensor. */
nmlp_affine nmlp_strip_column_tile(const nmlp_tile_loops *l);
/* dst = acc for the first chunk of the contraction, dst += acc for later ones. */
void nmlp_strip_take_sum(nmlp_strip *b, nmlp_buf_ref dst, nmlp_buf_ref acc, int chunk, nmlp_nc_engine copier);
/* `n` tile rows that begin at element `at` of the packed tensor, into the rows of the buffer from `row` on. */
void nmlp_strip_load_tile_rows(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_affine at, int64_t row, int64_t n);

#endif
