/* Where the blocks of columns of a stage go. */
#ifndef NMLP_KERNELS_GEMM_EPILOGUE_H
#define NMLP_KERNELS_GEMM_EPILOGUE_H

#include "kernels/gemm/stage.h"

/* To rows y [.., n], plus the bias. */
typedef struct nmlp_rows_sink {
    const nmlp_vec *vec;
    float *y;          /* of the stage's first row */
    const float *bias; /* [n] or NULL */
    int64_t n;
    bool add; /* to what y holds */
} nmlp_rows_sink;
void nmlp_sink_rows(void *ctx, const nmlp_columns *columns);
void nmlp_describe_rows(const void *ctx, const nmlp_columns *columns, nmlp_panel *panel);

/* To the tiles of the next matmul, each product to its own. */
typedef struct nmlp_tiles_sink {
    const nmlp_vec *vec;
    nmlp_tiles to[NMLP_PRODUCTS_MAX];
    int n_products;
    int64_t n;   /* columns that are real */
    int64_t col; /* the column that becomes input 0 */
    bool gated;  /* silu(product 0) * product 1 to to[0] */
} nmlp_tiles_sink;
void nmlp_sink_tiles(void *ctx, const nmlp_columns *columns);
void nmlp_describe_tiles(const void *ctx, const nmlp_columns *columns, nmlp_panel *panel);

/* Rows on their way into tiles. */
typedef struct nmlp_packing {
    const nmlp_vec *vec;
    const float *x; /* [rows,k] */
    int64_t k;
    const nmlp_fused *fused; /* for its norm */
    float *row;              /* [k], the thread's own: a normalised row */
} nmlp_packing;

/* Shared between threads. */
void nmlp_pack_work(const nmlp_tiles *tiles, const nmlp_packing *packing, int64_t rows, nmlp_worker *worker);

#endif
