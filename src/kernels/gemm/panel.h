/* A panel: all tiles of rows of a task against 32 columns in one call, with the epilogue of each tile overlapped with
 * the products of the next. For sets with tile registers, whose micro-tile is 32 x 32. */
#ifndef NMLP_KERNELS_GEMM_PANEL_H
#define NMLP_KERNELS_GEMM_PANEL_H

#include "kernels/gemm/gemm.h"

/* Rows and columns of a tile of sums. */
enum { NMLP_GEMM_PANEL_TILE = 32, NMLP_GEMM_PANEL_TILE_FLOATS = NMLP_GEMM_PANEL_TILE * NMLP_GEMM_PANEL_TILE };

/* The epilogues a panel runs itself. */
typedef enum nmlp_gemm_store_kind {
    NMLP_STORE_BY_CALLBACK, /* any other */
    NMLP_STORE_LINES,       /* bf16, lines of the next matmul's tiles */
    NMLP_STORE_GATED_LINES, /* silu(first) * second, of two products */
    NMLP_STORE_ROWS,        /* f32 */
    NMLP_STORE_ADDED_ROWS   /* to what is there */
} nmlp_gemm_store_kind;

/* A tile of finished sums that is yet to be stored: rows of 32 floats, of one or two products. */
typedef struct nmlp_gemm_finished_tile {
    nmlp_gemm_store_kind outcome;
    const float *sums[2];
    char *to;
    int64_t row_bytes; /* from row to row of `to` */
    int64_t row;       /* the first, of the stage's rows */
    int64_t col;
    int64_t rows; /* left */
} nmlp_gemm_finished_tile;

/* C [rows,32] = or += A [rows,k] B [k,32], tile of rows by tile of rows. All inputs of a tile pass at once, so that its
 * sums stay in registers; successive tiles take them in opposite directions, because what was used last is still in
 * L1. The tile finished before is stored meanwhile: products of tiles leave the vector units idle. */
struct nmlp_gemm_panel {
    const char *a; /* first tile */
    size_t a_step; /* as in nmlp_gemm_microtile */
    size_t a_tile_bytes;
    const char *b;
    size_t b_step;
    int64_t k;
    int64_t rows;
    float *c;            /* tiles one after the other, or two that alternate */
    const float *scales; /* [32] of columns, by which complete sums are multiplied; NULL: none */
    /* [32 * tiles] of rows: A and B are int8, `scales` are given, and sums, exact in int32, are multiplied by both. A
     * step is then 64 inputs. NULL: bf16. */
    const float *row_scales;
    const float *earlier; /* sums to add to, tiles one after the other; NULL: fresh */
    bool double_buffered;
    int buffer;     /* which of two the first tile goes to */
    bool kept;      /* c or earlier comes from far: fetch it ahead */
    bool backwards; /* the first tile; the next ones alternate */
    bool stream;    /* B is used once */
    bool far_a;     /* first use of the rows in this stage: they may have left L2 */
    const char *ahead;
    size_t ahead_step;
    int ahead_lines;               /* of each strip to be brought near at every step */
    nmlp_gemm_finished_tile first; /* the first tile, whose `to` and sums[0] of two move on; rows 0: sums stay in c */
    int64_t to_tile_bytes;
    int n_products;
    int64_t rows_per_store; /* stored at once, every so many steps of 32 inputs */
    int64_t steps_between;
    nmlp_gemm_finished_tile *finished; /* in: the tile before the first; out: the last */
    /* Stores the next n rows of a tile, where the epilogue is none of the above. */
    void (*store_rows)(void *ctx, const nmlp_gemm_finished_tile *tile, int64_t n);
    void *ctx;
};

nmlp_gemm_panel_fn nmlp_gemm_panel_emu;
#if defined(__x86_64__)
nmlp_gemm_panel_fn nmlp_gemm_panel_amx;
#endif

/* Where the sums of tile i go. */
static inline float *nmlp_gemm_panel_sums(const nmlp_gemm_panel *p, int64_t i) {
    return p->c + (p->double_buffered ? (p->buffer + i) & 1 : i) * NMLP_GEMM_PANEL_TILE_FLOATS;
}

/* Tile i, once it is finished. */
static inline nmlp_gemm_finished_tile nmlp_gemm_panel_finished(const nmlp_gemm_panel *p, int64_t i) {
    nmlp_gemm_finished_tile f = p->first;
    if (f.rows == 0) return f;
    int64_t row = i * NMLP_GEMM_PANEL_TILE;
    if (p->n_products == 2) f.sums[0] += i * NMLP_GEMM_PANEL_TILE_FLOATS;
    f.sums[p->n_products - 1] = nmlp_gemm_panel_sums(p, i);
    if (f.to) f.to += i * p->to_tile_bytes;
    f.row += row;
    f.rows = p->rows - row < NMLP_GEMM_PANEL_TILE ? p->rows - row : NMLP_GEMM_PANEL_TILE;
    return f;
}

#endif
