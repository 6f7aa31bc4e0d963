#include "kernels/gemm/epilogue.h"

enum { PACK_ROWS = 4 };

void nmlp_sink_rows(void *ctx, const nmlp_columns *columns) {
    const nmlp_rows_sink *sink = ctx;
    nmlp_put from = {.src = columns->c[0],
                     .src_stride = columns->width,
                     .n_rows = columns->n_rows,
                     .n = nmlp_min(columns->width, sink->n - columns->col)};
    if (from.n <= 0) return;
    (sink->add ? sink->vec->add_rows : sink->vec->copy_rows)(sink->y + columns->row * sink->n + columns->col, sink->n,
                                                             &from, sink->bias ? sink->bias + columns->col : NULL);
}

void nmlp_describe_rows(const void *ctx, const nmlp_columns *columns, nmlp_panel *panel) {
    const nmlp_rows_sink *sink = ctx;
    int64_t row_bytes = sink->n * (int64_t)sizeof(float);
    if (sink->bias || columns->col + NMLP_PANEL_TILE > sink->n) return;
    panel->first.outcome = sink->add ? NMLP_ADDED_ROWS : NMLP_TO_ROWS;
    panel->first.to = (char *)(sink->y + columns->row * sink->n + columns->col);
    panel->first.row_bytes = row_bytes;
    panel->to_tile_bytes = row_bytes * NMLP_PANEL_TILE;
}

/* Padding is written as zeros, not as what was summed there: infinity times a zero weight is no number. */
void nmlp_sink_tiles(void *ctx, const nmlp_columns *columns) {
    const nmlp_tiles_sink *sink = ctx;
    int64_t n = nmlp_max(0, nmlp_min(columns->width, sink->n - columns->col));
    int64_t n_padded = nmlp_min(columns->width, sink->to[0].k_padded - (columns->col - sink->col));
    int n_products = sink->gated ? 1 : sink->n_products;
    for (int p = 0; p < n_products; p++) {
        nmlp_put put = {.src = columns->c[p],
                        .up = sink->gated ? columns->c[1] : NULL,
                        .src_stride = columns->width,
                        .n_rows = columns->n_rows,
                        .n = n,
                        .n_padded = n_padded};
        nmlp_tiles_put(&sink->to[p], sink->vec, columns->row, columns->col - sink->col, put);
    }
}

void nmlp_describe_tiles(const void *ctx, const nmlp_columns *columns, nmlp_panel *panel) {
    const nmlp_tiles_sink *sink = ctx;
    const nmlp_tiles *to = &sink->to[0];
    int64_t k = columns->col - sink->col;
    if (k % NMLP_PAD || columns->col + NMLP_PANEL_TILE > sink->n) return;
    panel->first.outcome = sink->gated ? NMLP_GATED_LINES : NMLP_TO_LINES;
    panel->first.to = nmlp_tiles_at(to, columns->row / NMLP_PANEL_TILE, k);
    panel->first.row_bytes = NMLP_LINE_BYTES;
    panel->to_tile_bytes = to->k_padded * NMLP_LINE_BYTES;
}

static void pack_normed(const nmlp_tiles *tiles, const nmlp_packing *p, int64_t row) {
    nmlp_norm_row(p->row, p->x + row * p->k, p->fused->norm, p->fused->norm_eps, p->k);
    nmlp_put put = {.src = p->row, .n_rows = 1, .n = p->k, .n_padded = tiles->k_padded};
    nmlp_tiles_put(tiles, p->vec, row, 0, put);
}

static void pack_rows(const nmlp_tiles *tiles, const nmlp_packing *p, int64_t row, int64_t n) {
    nmlp_put put = {.src = p->x + row * p->k, .src_stride = p->k, .n_rows = n, .n = p->k, .n_padded = tiles->k_padded};
    nmlp_tiles_put(tiles, p->vec, row, 0, put);
}

void nmlp_pack_work(const nmlp_tiles *tiles, const nmlp_packing *packing, int64_t rows, nmlp_worker *worker) {
    nmlp_worker_begin_step(worker, nmlp_ceil_div(rows, PACK_ROWS));
    for (int64_t at = nmlp_worker_take(worker); at >= 0; at = nmlp_worker_take(worker)) {
        int64_t end = nmlp_min(rows, (at + 1) * PACK_ROWS);
        if (!packing->fused->norm) pack_rows(tiles, packing, at * PACK_ROWS, end - at * PACK_ROWS);
        for (int64_t row = at * PACK_ROWS; packing->fused->norm && row < end; row++) pack_normed(tiles, packing, row);
    }
}
