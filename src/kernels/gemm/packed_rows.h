/* A block of activation rows in tile order (gemm.h). */
#ifndef NMLP_KERNELS_GEMM_PACKED_ROWS_H
#define NMLP_KERNELS_GEMM_PACKED_ROWS_H

#include "kernels/kernels_internal.h"

typedef struct nmlp_gemm_tiles {
    char *data;
    int64_t k_padded;
    int64_t n_tiles;
    int rows;         /* of one tile */
    int elem_bytes;   /* 4 f32, 2 bf16, 1 int8 */
    float *scales;    /* int8: [tiles * rows] */
    bool is_unsigned; /* int8: 128 higher */
} nmlp_gemm_tiles;

/* For up to `rows` rows of k inputs; memory from the carver. */
static inline nmlp_gemm_tiles nmlp_gemm_tiles_carve(nmlp_carver *carver, const nmlp_gemm *gemm, int64_t rows,
                                                    int64_t k) {
    nmlp_gemm_tiles t = {
        .k_padded = nmlp_pad(k), .n_tiles = nmlp_ceil_div(rows, gemm->mr), .elem_bytes = gemm->elem_bytes};
    t.rows = gemm->full_tiles || rows > gemm->mr ? gemm->mr : (int)rows;
    t.data = nmlp_carve(carver, (size_t)(t.n_tiles * t.rows * t.k_padded) * (size_t)t.elem_bytes);
    return t;
}

enum { NMLP_GEMM_INT8_PAD = 64 }; /* inputs of a line */

/* The same for int8. */
static inline nmlp_gemm_tiles nmlp_gemm_tiles_carve_int8(nmlp_carver *carver, const nmlp_gemm *gemm, int64_t rows,
                                                         int64_t k) {
    nmlp_gemm_tiles t = {.k_padded = nmlp_round_up(k, NMLP_GEMM_INT8_PAD),
                         .n_tiles = nmlp_ceil_div(rows, gemm->mr),
                         .rows = gemm->mr,
                         .elem_bytes = 1,
                         .is_unsigned = gemm->unsigned_rows};
    t.data = nmlp_carve(carver, (size_t)(t.n_tiles * t.rows * t.k_padded));
    t.scales = nmlp_carve(carver, (size_t)(t.n_tiles * t.rows) * sizeof *t.scales);
    return t;
}

/* Bytes from one line of inputs to the next. */
static inline size_t nmlp_gemm_tiles_step(const nmlp_gemm_tiles *t) { return (size_t)t->rows * NMLP_LINE_BYTES; }

/* Tile `tile` from input k (a multiple of 32) on. */
static inline char *nmlp_gemm_tiles_at(const nmlp_gemm_tiles *t, int64_t tile, int64_t k) {
    return t->data + (size_t)((tile * t->k_padded + k) * t->rows) * (size_t)t->elem_bytes;
}

/* Writes the rows of `put`, from `row` on, at inputs k.. (multiple of 16); dst and step are filled in here. */
static inline void nmlp_gemm_tiles_put(const nmlp_gemm_tiles *t, const nmlp_vec *vec, int64_t row, int64_t k,
                                       nmlp_vec_put put) {
    int64_t per_line = t->elem_bytes == 2 ? NMLP_LINE_BYTES / 2 : NMLP_LINE_BYTES / 4; /* no division at run time */
    int64_t end = row + put.n_rows;
    put.step = nmlp_gemm_tiles_step(t);
    while (row < end) {
        int64_t tile = (uint32_t)row / (uint32_t)t->rows;
        int64_t in_line = k & (per_line - 1);
        size_t first_line = (size_t)((tile * t->k_padded + k - in_line) * t->rows) * (size_t)t->elem_bytes;
        put.dst =
            t->data + first_line + (size_t)(row - tile * t->rows) * NMLP_LINE_BYTES + (size_t)(in_line * t->elem_bytes);
        put.n_rows = nmlp_min(end, (tile + 1) * t->rows) - row;
        (t->elem_bytes == 2 ? vec->put_bf16 : vec->put_f32)(&put);
        row += put.n_rows;
        put.src += put.n_rows * put.src_stride;
        if (put.up) put.up += put.n_rows * put.src_stride;
    }
}

/* Rounds a row of k inputs to int8. */
static inline void nmlp_gemm_tiles_put_int8(const nmlp_gemm_tiles *t, const nmlp_vec *vec, int64_t row,
                                            const float *src, int64_t k) {
    nmlp_vec_int8_row to = {.dst = (int8_t *)nmlp_gemm_tiles_at(t, row / t->rows, 0) + row % t->rows * NMLP_LINE_BYTES,
                            .is_unsigned = t->is_unsigned,
                            .step = nmlp_gemm_tiles_step(t),
                            .src = src,
                            .n = k,
                            .n_padded = t->k_padded};
    t->scales[row] = vec->put_int8(&to);
}

#endif
