#include "kernels/sinks.h"

enum { PACK_ROWS = 4 };

void nmlp_sink_rows(void *ctx, const nmlp_columns *columns) {
    const nmlp_rows_sink *sink = ctx;
    nmlp_put from = {.src = columns->c[0],
                     .src_stride = columns->width,
                     .n_rows = columns->n_rows,
                     .n = nmlp_min(columns->width, sink->n - columns->col)};
    if (from.n <= 0) return;
    sink->vec->copy_rows(sink->y + columns->row * sink->n + columns->col, sink->n, &from,
                         sink->bias ? sink->bias + columns->col : NULL);
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

void nmlp_pack_work(const nmlp_tiles *tiles, const nmlp_vec *vec, const float *x, int64_t rows, int64_t k,
                    nmlp_worker *worker) {
    nmlp_worker_begin_step(worker, nmlp_ceil_div(rows, PACK_ROWS));
    for (int64_t at = nmlp_worker_take(worker); at >= 0; at = nmlp_worker_take(worker)) {
        int64_t row = at * PACK_ROWS;
        nmlp_put put = {.src = x + row * k,
                        .src_stride = k,
                        .n_rows = nmlp_min(rows - row, PACK_ROWS),
                        .n = k,
                        .n_padded = tiles->k_padded};
        nmlp_tiles_put(tiles, vec, row, 0, put);
    }
}
