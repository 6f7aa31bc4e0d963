#include "kernels/sinks.h"

#include <string.h>

enum { PACK_ROWS = 4 };

void nmlp_sink_rows(void *ctx, const nmlp_columns *columns) {
    const nmlp_rows_sink *sink = ctx;
    int64_t n = nmlp_min(columns->width, sink->n - columns->col);
    for (int64_t i = 0; i < columns->n_rows; i++) {
        float *y = sink->y + (columns->row + i) * sink->n + columns->col;
        const float *c = columns->c[0] + i * columns->width;
        if (n <= 0) return;
        if (!sink->bias)
            memcpy(y, c, (size_t)n * sizeof *y);
        else
            for (int64_t j = 0; j < n; j++) y[j] = c[j] + sink->bias[columns->col + j];
    }
}

/* Padding is written as zeros, not as what was summed there: infinity times a zero weight is no number. */
void nmlp_sink_tiles(void *ctx, const nmlp_columns *columns) {
    const nmlp_tiles_sink *sink = ctx;
    int64_t n = nmlp_max(0, nmlp_min(columns->width, sink->n - columns->col));
    int64_t n_padded = nmlp_min(columns->width, sink->to[0].k_padded - (columns->col - sink->col));
    int n_products = sink->gated ? 1 : sink->n_products;
    if (sink->gated)
        sink->vec->silu_mul(columns->c[0], columns->c[0], columns->c[1], columns->n_rows * columns->width);
    for (int p = 0; p < n_products; p++)
        for (int64_t i = 0; i < columns->n_rows; i++)
            nmlp_tiles_put(&sink->to[p], sink->vec, columns->row + i, columns->col - sink->col,
                           columns->c[p] + i * columns->width, n, n_padded);
}

void nmlp_pack_work(const nmlp_tiles *tiles, const nmlp_vec *vec, const float *x, int64_t rows, int64_t k,
                    nmlp_worker *worker) {
    nmlp_worker_begin_step(worker, nmlp_ceil_div(rows, PACK_ROWS));
    for (int64_t at = nmlp_worker_take(worker); at >= 0; at = nmlp_worker_take(worker)) {
        int64_t end = nmlp_min(rows, (at + 1) * PACK_ROWS);
        for (int64_t row = at * PACK_ROWS; row < end; row++)
            nmlp_tiles_put(tiles, vec, row, 0, x + row * k, k, tiles->k_padded);
    }
}
