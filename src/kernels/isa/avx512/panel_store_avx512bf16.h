/* Epilogues that panels run themselves: rows of a finished tile on their way out. */
#ifndef NMLP_KERNELS_ISA_AVX512_PANEL_STORE_AVX512BF16_H
#define NMLP_KERNELS_ISA_AVX512_PANEL_STORE_AVX512BF16_H

#include "kernels/gemm/panel.h"
#include "kernels/isa/avx512/lanes_avx512bf16.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void put_line(char *to, const float *sums) { store_bf16_line(to, load(sums), load(sums + LANES)); }

INLINE void put_gated(char *to, const float *gate, const float *up) {
    store_bf16_line(to, gate_for_bf16(load(gate), load(up)), gate_for_bf16(load(gate + LANES), load(up + LANES)));
}

INLINE void put_row(char *to, const float *sums, bool add) {
    float *y = (float *)to;
    store(y, add ? load(y) + load(sums) : load(sums));
    store(y + LANES, add ? load(y + LANES) + load(sums + LANES) : load(sums + LANES));
}

/* Rows to add to lie pages apart, where no hardware fetches ahead. */
INLINE void fetch_row(const char *row) {
    __builtin_prefetch(row, 1);
    __builtin_prefetch(row + NMLP_LINE_BYTES, 1);
}

INLINE void put_next(nmlp_gemm_finished_tile *f, const nmlp_gemm_store_kind outcome) {
    enum { ROWS_AHEAD = 8 };
    if (outcome == NMLP_STORE_ADDED_ROWS) fetch_row(f->to + ROWS_AHEAD * f->row_bytes);
    if (outcome == NMLP_STORE_LINES) put_line(f->to, f->sums[0]);
    if (outcome == NMLP_STORE_GATED_LINES) put_gated(f->to, f->sums[0], f->sums[1]);
    if (outcome == NMLP_STORE_ROWS || outcome == NMLP_STORE_ADDED_ROWS)
        put_row(f->to, f->sums[0], outcome == NMLP_STORE_ADDED_ROWS);
    f->to += f->row_bytes;
    f->sums[0] += NMLP_GEMM_PANEL_TILE;
    if (outcome == NMLP_STORE_GATED_LINES) f->sums[1] += NMLP_GEMM_PANEL_TILE;
    f->rows--;
}

/* The next n rows of the tile, or what is left of them. */
INLINE void put_rows(const nmlp_gemm_panel *p, nmlp_gemm_finished_tile *f, int64_t n,
                     const nmlp_gemm_store_kind outcome) {
    if (n > f->rows) n = f->rows;
    if (outcome != NMLP_STORE_BY_CALLBACK) {
        for (; n > 0; n--) put_next(f, outcome);
        return;
    }
    p->store_rows(p->ctx, f, n);
    f->sums[0] += n * NMLP_GEMM_PANEL_TILE;
    if (p->n_products == 2) f->sums[1] += n * NMLP_GEMM_PANEL_TILE;
    f->row += n;
    f->rows -= n;
}

/* Sums of codes, times the scales of their columns. */
INLINE void scale_sums(const nmlp_gemm_panel *p, float *c, int64_t rows) {
    lanes left = load(p->scales), right = load(p->scales + LANES);
    for (int64_t row = 0; row < rows; row++, c += NMLP_GEMM_PANEL_TILE) {
        store(c, load(c) * left);
        store(c + LANES, load(c + LANES) * right);
    }
}

/* Sums of products of int8, in place, times the scales of their rows and columns; `excess` [32] is taken from each
 * column first. */
INLINE void scale_int8_sums(const nmlp_gemm_panel *p, int64_t tile, float *c, int64_t rows, const int32_t *excess) {
    const float *row_scales = p->row_scales + tile * NMLP_GEMM_PANEL_TILE;
    __m512 left = _mm512_loadu_ps(p->scales), right = _mm512_loadu_ps(p->scales + LANES);
    __m512i less_left = excess ? _mm512_load_si512(excess) : _mm512_setzero_si512();
    __m512i less_right = excess ? _mm512_load_si512(excess + LANES) : _mm512_setzero_si512();
    for (int64_t row = 0; row < rows; row++, c += NMLP_GEMM_PANEL_TILE) {
        __m512 scale = _mm512_set1_ps(row_scales[row]);
        __m512 first = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_load_si512(c), less_left)),
               second = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_load_si512(c + LANES), less_right));
        _mm512_store_ps(c, _mm512_mul_ps(first, _mm512_mul_ps(scale, left)));
        _mm512_store_ps(c + LANES, _mm512_mul_ps(second, _mm512_mul_ps(scale, right)));
    }
}

#endif
