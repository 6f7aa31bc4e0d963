/* Matmuls on tiles of 32 x 32 sums, with what becomes of the sums. */
#ifndef NMLP_KERNELS_GEMM_PANEL_H
#define NMLP_KERNELS_GEMM_PANEL_H

#include "kernels/gemm/gemm.h"

/* Rows and columns of a tile of sums. */
enum { NMLP_PANEL_TILE = 32, NMLP_PANEL_TILE_FLOATS = NMLP_PANEL_TILE * NMLP_PANEL_TILE };

/* What becomes of finished sums. */
typedef enum nmlp_outcome {
    NMLP_BY_CALL,     /* not simple enough to be described here */
    NMLP_TO_LINES,    /* bf16, lines of the next matmul's tiles */
    NMLP_GATED_LINES, /* silu(first) * second, of two products */
    NMLP_TO_ROWS,     /* f32 */
    NMLP_ADDED_ROWS   /* to what is there */
} nmlp_outcome;

/* A tile of finished sums that is yet to be delivered: rows of 32 floats, of one or two products. */
typedef struct nmlp_finished {
    nmlp_outcome outcome;
    const float *sums[2];
    char *to;
    int64_t row_bytes; /* from row to row of `to` */
    int64_t row;       /* the first, of the stage's rows */
    int64_t col;
    int64_t rows; /* left */
} nmlp_finished;

/* C [rows,32] = or += A [rows,k] B [k,32], tile of rows by tile of rows. All inputs of a tile pass at once, so that its
 * sums stay in registers; successive tiles take them in opposite directions, because what was used last is still in
 * L1. The tile finished before is delivered meanwhile: products of tiles leave the vector units idle. */
struct nmlp_panel {
    const char *a; /* first tile */
    size_t a_step; /* as in nmlp_block */
    size_t a_tile_bytes;
    const char *b;
    size_t b_step;
    int64_t k;
    int64_t rows;
    float *c;             /* tiles one after the other, or two in turn */
    const float *earlier; /* sums to add to, tiles one after the other; NULL: fresh */
    bool in_turn;
    int turn;       /* which of two the first tile goes to */
    bool kept;      /* c or earlier comes from far: fetch it ahead */
    bool backwards; /* the first tile; the next ones alternate */
    bool stream;    /* B is used once */
    bool far_a;     /* first use of the rows in this stage: they may have left L2 */
    const char *ahead;
    size_t ahead_step;
    int ahead_lines;     /* of each strip to be brought near at every step */
    nmlp_finished first; /* the first tile, whose `to` and sums[0] of two move on; rows 0: sums stay in c */
    int64_t to_tile_bytes;
    int n_products;
    int64_t rows_per_turn; /* delivered at once, every so many steps of 32 inputs */
    int64_t steps_between;
    nmlp_finished *finished; /* in: the tile before the first; out: the last */
    /* The next n rows by call. */
    void (*deliver)(void *ctx, const nmlp_finished *tile, int64_t n);
    void *ctx;
};

nmlp_panel_fn nmlp_panel_emu;
#if defined(__x86_64__)
nmlp_panel_fn nmlp_panel_amx;
#endif

/* Where the sums of tile i go. */
static inline float *nmlp_panel_sums(const nmlp_panel *p, int64_t i) {
    return p->c + (p->in_turn ? (p->turn + i) & 1 : i) * NMLP_PANEL_TILE_FLOATS;
}

/* Tile i, once it is finished. */
static inline nmlp_finished nmlp_panel_finished(const nmlp_panel *p, int64_t i) {
    nmlp_finished f = p->first;
    if (f.rows == 0) return f;
    int64_t row = i * NMLP_PANEL_TILE;
    if (p->n_products == 2) f.sums[0] += i * NMLP_PANEL_TILE_FLOATS;
    f.sums[p->n_products - 1] = nmlp_panel_sums(p, i);
    if (f.to) f.to += i * p->to_tile_bytes;
    f.row += row;
    f.rows = p->rows - row < NMLP_PANEL_TILE ? p->rows - row : NMLP_PANEL_TILE;
    return f;
}

#endif
