/* Epilogues of a stage: where its sums go, and what is done to them on the way. */
#ifndef NMLP_KERNELS_GEMM_EPILOGUE_H
#define NMLP_KERNELS_GEMM_EPILOGUE_H

#include "kernels/gemm/stage.h"

/* To rows y [.., n], plus the bias. */
typedef struct nmlp_gemm_to_rows {
    const nmlp_vec *vec;
    float *y;          /* of the stage's first row */
    const float *bias; /* [n] or NULL */
    int64_t n;
    bool add; /* to what y holds */
} nmlp_gemm_to_rows;
void nmlp_gemm_to_rows_run(void *ctx, const nmlp_gemm_columns *columns);
void nmlp_gemm_to_rows_describe(const void *ctx, const nmlp_gemm_columns *columns, nmlp_gemm_panel *panel);

/* To the tiles of the next matmul, each product to its own. */
typedef struct nmlp_gemm_to_tiles {
    const nmlp_vec *vec;
    nmlp_gemm_tiles to[NMLP_GEMM_PRODUCTS_MAX];
    int n_products;
    int64_t n;   /* columns that are real */
    int64_t col; /* the column that becomes input 0 */
    bool gated;  /* activation(product 0) * product 1 to to[0] */
    nmlp_activation activation;
} nmlp_gemm_to_tiles;
void nmlp_gemm_to_tiles_run(void *ctx, const nmlp_gemm_columns *columns);
void nmlp_gemm_to_tiles_describe(const void *ctx, const nmlp_gemm_columns *columns, nmlp_gemm_panel *panel);

#endif
