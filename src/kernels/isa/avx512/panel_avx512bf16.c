/* Blocks of 32 x 32 and panels of them in vector registers, on operands in the order of AMX tiles: pairs of bf16 with
 * f32 sums, or four bytes at a time with int32. */
#include "kernels/isa/avx512/panel_store_avx512bf16.h"
#include "kernels/isa/avx512/quant_unpack_avx512bf16.h"

enum {
    TILE = NMLP_GEMM_PANEL_TILE,
    TILE_FLOATS = NMLP_GEMM_PANEL_TILE_FLOATS,
    STRIPS = 2,
    STEP_BYTES = 1024, /* of a strip: 32 inputs in bf16, 64 in int8 */
    WORDS = 16,        /* of a row's line in a step: as many lines of each strip */
    ROWS_MOST = 11,    /* whose sums of two strips are in registers beside a line of each strip, a word of a row and
                          the excess of bytes */
    STEPS_AT_ONCE = 8  /* two strips of them stay in L1 while all rows pass */
};

/* One call: some rows of a tile, some steps. */
typedef struct piece {
    float *c;             /* int32 for bytes */
    const float *earlier; /* sums to add to; NULL: fresh */
    const char *a;
    size_t a_step;
    const char *b0, *b1;
    int64_t n_steps;
    const char *ahead0, *ahead1; /* of the strips that come next */
    int ahead_lines;             /* at every step */
    int32_t *excess;             /* bytes: added up meanwhile; NULL: not */
    bool stream;                 /* the strips come from memory: they are fetched before those that come next */
} piece;

/* For bytes `a` has no sign. */
INLINE __m512i dot(__m512i sum, __m512i a, __m512i b, const bool int8) {
    if (int8) return _mm512_dpbusd_epi32(sum, a, b);
    return (__m512i)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

INLINE void fetch_ahead(const piece *p, int64_t step) {
    for (int64_t i = step * p->ahead_lines; i < (step + 1) * p->ahead_lines; i++) {
        _mm_prefetch(p->ahead0 + i * NMLP_LINE_BYTES, _MM_HINT_T0);
        _mm_prefetch(p->ahead1 + i * NMLP_LINE_BYTES, _MM_HINT_T0);
    }
}

/* Rows of bytes lie 128 higher than they are, since one operand of a product must have no sign: the excess is what that
 * adds to each column. */
INLINE void multiply_rows(const piece *p, const int rows, const bool int8, const bool adds_excess) {
    const __m512i high = _mm512_set1_epi8((char)0x80);
    __m512i sums[ROWS_MOST][STRIPS];
    __m512i excess[STRIPS] = {0};
    const char *a = p->a, *b0 = p->b0, *b1 = p->b1;
#pragma GCC unroll 11
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int s = 0; s < STRIPS; s++)
            sums[i][s] =
                p->earlier ? _mm512_load_si512(p->earlier + i * TILE + s * NMLP_STRIP) : _mm512_setzero_si512();
    if (adds_excess)
        for (int s = 0; s < STRIPS; s++) excess[s] = _mm512_load_si512(p->excess + s * NMLP_STRIP);
    for (int64_t step = 0; step < p->n_steps; step++, a += p->a_step) {
        fetch_ahead(p, step);
#pragma GCC unroll 4
        for (int word = 0; word < WORDS; word++, b0 += NMLP_LINE_BYTES, b1 += NMLP_LINE_BYTES) {
            const int *row = (const int *)(const void *)(a + word * (int)sizeof(int));
            __m512i left = _mm512_load_si512(b0), right = _mm512_load_si512(b1);
#pragma GCC unroll 11
            for (int i = 0; i < rows; i++) {
                __m512i x = _mm512_set1_epi32(row[i * WORDS]);
                sums[i][0] = dot(sums[i][0], x, left, int8);
                sums[i][1] = dot(sums[i][1], x, right, int8);
            }
            if (adds_excess) {
                excess[0] = dot(excess[0], high, left, true);
                excess[1] = dot(excess[1], high, right, true);
            }
        }
    }
    if (adds_excess)
        for (int s = 0; s < STRIPS; s++) _mm512_store_si512(p->excess + s * NMLP_STRIP, excess[s]);
#pragma GCC unroll 11
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int s = 0; s < STRIPS; s++) _mm512_store_si512(p->c + i * TILE + s * NMLP_STRIP, sums[i][s]);
}

/* Of 32 rows: 11, 11, 10. Tiles have room for as many as are made. */
INLINE void multiply_some(const piece *p, int64_t rows, const bool int8, const bool adds_excess) {
    if (rows >= ROWS_MOST)
        multiply_rows(p, ROWS_MOST, int8, adds_excess);
    else if (rows > ROWS_MOST / 2)
        multiply_rows(p, ROWS_MOST - 1, int8, adds_excess);
    else
        multiply_rows(p, ROWS_MOST / 2, int8, adds_excess);
}

static void multiply_some_bf16(const piece *p, int64_t rows) { multiply_some(p, rows, false, false); }

static void multiply_some_int8(const piece *p, int64_t rows) {
    if (p->excess)
        multiply_some(p, rows, true, true);
    else
        multiply_some(p, rows, true, false);
}

/* All steps of `whole` for a tile: part by part, so that strips come from L1 for all rows but the first. */
INLINE void multiply_tile(const piece *whole, int64_t rows, const bool int8) {
    const int64_t n_steps = whole->n_steps;
    for (int64_t step = 0; step < n_steps; step += STEPS_AT_ONCE) {
        const float *earlier = step > 0 ? whole->c : whole->earlier;
        piece p = *whole;
        p.n_steps = n_steps - step < STEPS_AT_ONCE ? n_steps - step : STEPS_AT_ONCE;
        p.b0 += step * STEP_BYTES;
        p.b1 += step * STEP_BYTES;
        if (whole->stream) {
            bool last = step + STEPS_AT_ONCE >= n_steps;
            p.ahead0 = last ? whole->ahead0 : p.b0 + STEPS_AT_ONCE * STEP_BYTES;
            p.ahead1 = last ? whole->ahead1 : p.b1 + STEPS_AT_ONCE * STEP_BYTES;
            p.ahead_lines = STEP_BYTES / NMLP_LINE_BYTES;
        } else {
            p.ahead0 += step * p.ahead_lines * NMLP_LINE_BYTES;
            p.ahead1 += step * p.ahead_lines * NMLP_LINE_BYTES;
        }
        for (int64_t row = 0; row < rows; row += ROWS_MOST) {
            p.a = whole->a + (size_t)step * p.a_step + row * NMLP_LINE_BYTES;
            p.c = whole->c + row * TILE;
            p.earlier = earlier ? earlier + row * TILE : NULL;
            (int8 ? multiply_some_int8 : multiply_some_bf16)(&p, rows - row);
            p.ahead_lines = 0; /* asked for once */
            p.excess = NULL;
        }
    }
}

static void block_bf16(const nmlp_gemm_microtile *p) {
    piece whole = {.c = p->c,
                   .earlier = p->accumulate ? p->c : NULL,
                   .a = p->a,
                   .a_step = p->a_step,
                   .b0 = p->b,
                   .b1 = (const char *)p->b + p->b_step,
                   .n_steps = p->k / NMLP_PAD,
                   .ahead0 = p->b,
                   .ahead1 = p->b};
    multiply_tile(&whole, p->rows, false);
    while (p->overlap && p->overlap->row < p->overlap->end) nmlp_gemm_overlap_step(p->overlap);
}

/* ---- panels ---- */

INLINE void store_tile(const nmlp_gemm_panel *p, int64_t i) {
    nmlp_gemm_finished_tile f = nmlp_gemm_panel_finished(p, i);
    switch (f.outcome) {
    case NMLP_STORE_BY_CALLBACK:
        if (f.rows > 0) put_rows(p, &f, f.rows, NMLP_STORE_BY_CALLBACK);
        break;
    case NMLP_STORE_LINES: put_rows(p, &f, f.rows, NMLP_STORE_LINES); break;
    case NMLP_STORE_GATED_LINES: put_rows(p, &f, f.rows, NMLP_STORE_GATED_LINES); break;
    case NMLP_STORE_ROWS: put_rows(p, &f, f.rows, NMLP_STORE_ROWS); break;
    case NMLP_STORE_ADDED_ROWS: put_rows(p, &f, f.rows, NMLP_STORE_ADDED_ROWS); break;
    }
}

/* Vector units have no time to spare beside these products, so a tile is stored at once, from L1, and none is left to
 * the next call. */
INLINE void multiply_panel(const nmlp_gemm_panel *p, const bool int8) {
    _Alignas(NMLP_LINE_BYTES) int32_t excess[TILE] = {0};
    const int64_t n_steps = p->k / (int8 ? 2 * NMLP_PAD : NMLP_PAD);
    for (int64_t i = 0; i * TILE < p->rows; i++) {
        int64_t rows = p->rows - i * TILE < TILE ? p->rows - i * TILE : TILE;
        int64_t fetched_bytes = i * n_steps * p->ahead_lines * NMLP_LINE_BYTES;
        piece whole = {.c = nmlp_gemm_panel_sums(p, i),
                       .earlier = p->earlier ? p->earlier + i * TILE_FLOATS : NULL,
                       .a = p->a + p->a_tile_bytes * (size_t)i,
                       .a_step = p->a_step,
                       .b0 = p->b,
                       .b1 = p->b + p->b_step,
                       .n_steps = n_steps,
                       .ahead0 = p->ahead + fetched_bytes,
                       .ahead1 = p->ahead + p->ahead_step + fetched_bytes,
                       .ahead_lines = p->ahead_lines,
                       .excess = int8 && i == 0 ? excess : NULL,
                       .stream = p->stream};
        multiply_tile(&whole, rows, int8);
        if (int8)
            scale_int8_sums(p, i, whole.c, rows, excess);
        else if (p->scales)
            scale_sums(p, whole.c, rows);
        store_tile(p, i);
    }
}

static void multiply_panel_bf16(const nmlp_gemm_panel *p) { multiply_panel(p, false); }
static void multiply_panel_int8(const nmlp_gemm_panel *p) { multiply_panel(p, true); }

static void panel(const nmlp_gemm_panel *p) { (p->row_scales ? multiply_panel_int8 : multiply_panel_bf16)(p); }

const nmlp_gemm nmlp_gemm_avx512bf16 = {
    .mr = TILE,
    .strips = STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .int8_panels = true,
    .unsigned_rows = true,
    .microkernel = {[NMLP_DTYPE_BF16] = block_bf16},
    .unpack = nmlp_gemm_quant_unpack_avx512bf16,
    .panel = panel,
};
