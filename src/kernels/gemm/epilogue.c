#include "kernels/gemm/epilogue.h"

void nmlp_gemm_to_rows_run(void *ctx, const nmlp_gemm_columns *columns) {
    const nmlp_gemm_to_rows *epilogue = ctx;
    nmlp_vec_put from = {.src = columns->c[0],
                         .src_stride = columns->stride,
                         .n_rows = columns->n_rows,
                         .n = nmlp_min(columns->width, epilogue->n - columns->col)};
    if (from.n <= 0) return;
    (epilogue->add ? epilogue->vec->add_rows
                   : epilogue->vec->copy_rows)(epilogue->y + columns->row * epilogue->n + columns->col, epilogue->n,
                                               &from, epilogue->bias ? epilogue->bias + columns->col : NULL);
}

void nmlp_gemm_to_rows_describe(const void *ctx, const nmlp_gemm_columns *columns, nmlp_gemm_panel *panel) {
    const nmlp_gemm_to_rows *epilogue = ctx;
    int64_t row_bytes = epilogue->n * (int64_t)sizeof(float);
    if (epilogue->bias || columns->col + NMLP_GEMM_PANEL_TILE > epilogue->n) return;
    panel->first.outcome = epilogue->add ? NMLP_STORE_ADDED_ROWS : NMLP_STORE_ROWS;
    panel->first.to = (char *)(epilogue->y + columns->row * epilogue->n + columns->col);
    panel->first.row_bytes = row_bytes;
    panel->to_tile_bytes = row_bytes * NMLP_GEMM_PANEL_TILE;
}

/* Padding is written as zeros, not as what was summed there: infinity times a zero weight is no number. */
void nmlp_gemm_to_tiles_run(void *ctx, const nmlp_gemm_columns *columns) {
    const nmlp_gemm_to_tiles *epilogue = ctx;
    int64_t n = nmlp_max(0, nmlp_min(columns->width, epilogue->n - columns->col));
    int64_t n_padded = nmlp_min(columns->width, epilogue->to[0].k_padded - (columns->col - epilogue->col));
    int n_products = epilogue->gated ? 1 : epilogue->n_products;
    for (int p = 0; p < n_products; p++) {
        nmlp_vec_put put = {.src = columns->c[p],
                            .up = epilogue->gated ? columns->c[1] : NULL,
                            .activation = epilogue->activation,
                            .src_stride = columns->stride,
                            .n_rows = columns->n_rows,
                            .n = n,
                            .n_padded = n_padded};
        nmlp_gemm_tiles_put(&epilogue->to[p], epilogue->vec, columns->row, columns->col - epilogue->col, put);
    }
}

void nmlp_gemm_to_tiles_describe(const void *ctx, const nmlp_gemm_columns *columns, nmlp_gemm_panel *panel) {
    const nmlp_gemm_to_tiles *epilogue = ctx;
    const nmlp_gemm_tiles *to = &epilogue->to[0];
    int64_t k = columns->col - epilogue->col;
    if (k % NMLP_PAD || columns->col + NMLP_GEMM_PANEL_TILE > epilogue->n) return;
    if (epilogue->gated && epilogue->activation != NMLP_ACTIVATION_SILU) return;
    panel->first.outcome = epilogue->gated ? NMLP_STORE_GATED_LINES : NMLP_STORE_LINES;
    panel->first.to = nmlp_gemm_tiles_at(to, columns->row / NMLP_GEMM_PANEL_TILE, k);
    panel->first.row_bytes = NMLP_LINE_BYTES;
    panel->to_tile_bytes = to->k_padded * NMLP_LINE_BYTES;
}
