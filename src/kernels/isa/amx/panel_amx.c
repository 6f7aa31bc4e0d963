/* Panels in 2 x 2 AMX tiles: bf16 activations and weights with f32 sums, or int8 with int32. */
#include "kernels/isa/amx/tile_config_amx.h"
#include "kernels/isa/avx512/panel_store_avx512bf16.h"

enum {
    TILE = NMLP_GEMM_PANEL_TILE,
    TILE_FLOATS = NMLP_GEMM_PANEL_TILE_FLOATS,
    TILE_BYTES = 1024,
    HALF = 16,
    FETCH_STEPS = 4
};
enum { C_STRIDE = TILE * (int)sizeof(float), HALF_FLOATS = HALF * TILE, C_LINES = TILE_FLOATS * 4 / NMLP_LINE_BYTES };

/* ---- products ---- */

INLINE void load_sums(const float *c) {
    if (c) {
        _tile_loadd(0, c, C_STRIDE);
        _tile_loadd(1, c + HALF, C_STRIDE);
        _tile_loadd(2, c + HALF_FLOATS, C_STRIDE);
        _tile_loadd(3, c + HALF_FLOATS + HALF, C_STRIDE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
}

INLINE void store_sums(float *c, bool low) {
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + HALF, C_STRIDE);
    if (!low) return;
    _tile_stored(2, c + HALF_FLOATS, C_STRIDE);
    _tile_stored(3, c + HALF_FLOATS + HALF, C_STRIDE);
}

/* Out of the loop's way. */
__attribute__((noinline)) static void finish_sums(const nmlp_gemm_panel *p, int64_t tile, int64_t rows) {
    float *c = nmlp_gemm_panel_sums(p, tile);
    nmlp_amx_settle_memory();
    if (p->row_scales)
        scale_int8_sums(p, tile, c, rows, NULL);
    else
        scale_sums(p, c, rows);
}

static void fetch_lines(const char *at, int64_t n) {
    for (int64_t i = 0; i < n; i++) _mm_prefetch(at + i * NMLP_LINE_BYTES, _MM_HINT_T0);
}

/* One step's share of the weights that come next; two lines of each of two strips are the usual. */
INLINE void fetch_weights(const char *at, const char *other, int n) {
    if (n < 1) return;
    _mm_prefetch(at, _MM_HINT_T1);
    _mm_prefetch(other, _MM_HINT_T1);
    if (n < 2) return;
    _mm_prefetch(at + NMLP_LINE_BYTES, _MM_HINT_T1);
    _mm_prefetch(other + NMLP_LINE_BYTES, _MM_HINT_T1);
    for (int i = 2; i < n; i++) {
        _mm_prefetch(at + i * NMLP_LINE_BYTES, _MM_HINT_T1);
        _mm_prefetch(other + i * NMLP_LINE_BYTES, _MM_HINT_T1);
    }
}

/* What a step fetches of operands that are further away than L2; out of the loop's way. */
struct far {
    const char *a; /* this step's */
    ptrdiff_t a_step;
    const char *b;
    ptrdiff_t b_step;
    const char *next_c; /* sums of the next tile */
    int64_t c_lines;    /* left */
};

__attribute__((noinline)) static void fetch_far(const nmlp_gemm_panel *p, struct far *far) {
    enum { C_LINES_PER_STEP = 2 };
    if (far->c_lines > 0) {
        fetch_lines(far->next_c, C_LINES_PER_STEP);
        far->next_c += C_LINES_PER_STEP * NMLP_LINE_BYTES;
        far->c_lines -= C_LINES_PER_STEP;
    }
    if (p->far_a) fetch_lines(far->a + 2 * far->a_step, 2 * TILE_BYTES / NMLP_LINE_BYTES);
    if (p->stream) {
        fetch_lines(far->b + FETCH_STEPS * far->b_step, TILE_BYTES / NMLP_LINE_BYTES);
        fetch_lines(far->b + (ptrdiff_t)p->b_step + FETCH_STEPS * far->b_step, TILE_BYTES / NMLP_LINE_BYTES);
    }
}

/* The upper or lower half of the rows times the left or right strip. */
INLINE void multiply_left(const bool int8, const bool upper) {
    if (int8 && upper) _tile_dpbssd(0, 4, 6);
    if (int8 && !upper) _tile_dpbssd(2, 5, 6);
    if (!int8 && upper) _tile_dpbf16ps(0, 4, 6);
    if (!int8 && !upper) _tile_dpbf16ps(2, 5, 6);
}

INLINE void multiply_right(const bool int8, const bool upper) {
    if (int8 && upper) _tile_dpbssd(1, 4, 7);
    if (int8 && !upper) _tile_dpbssd(3, 5, 7);
    if (!int8 && upper) _tile_dpbf16ps(1, 4, 7);
    if (!int8 && !upper) _tile_dpbf16ps(3, 5, 7);
}

/* Tile i of rows; up to 16 rows need but half the products. Every instruction in the loop counts: it holds up the tiles
 * as soon as it takes longer than they do. */
INLINE void multiply_tile(const nmlp_gemm_panel *p, int64_t i, const bool low, const nmlp_gemm_store_kind outcome,
                          const bool int8) {
    nmlp_gemm_finished_tile f = *p->finished;
    const int64_t n_steps = p->k / (int8 ? 2 * TILE : TILE);
    const bool backwards = p->backwards ^ (i & 1);
    const int64_t start = backwards ? n_steps - 1 : 0;
    const ptrdiff_t a_step = backwards ? -(ptrdiff_t)p->a_step : (ptrdiff_t)p->a_step;
    const ptrdiff_t b_step = backwards ? -TILE_BYTES : TILE_BYTES;
    const int ahead_lines = p->ahead_lines;
    const char *a = p->a + p->a_tile_bytes * (size_t)i + start * (ptrdiff_t)p->a_step;
    const char *b0 = p->b + start * TILE_BYTES;
    const char *b1 = b0 + p->b_step;
    const char *ahead0 = p->ahead + i * n_steps * ahead_lines * NMLP_LINE_BYTES;
    const char *ahead1 = ahead0 + p->ahead_step;
    const bool has_far = p->kept || p->far_a || p->stream;
    struct far far = {.a_step = a_step,
                      .b_step = b_step,
                      .next_c = (const char *)((p->earlier ? p->earlier : p->c) + (i + 1) * TILE_FLOATS),
                      .c_lines = p->kept ? C_LINES : 0};
    int64_t until_store = f.rows > 0 ? p->steps_between + 1 : INT64_MAX;
    load_sums(p->earlier ? p->earlier + i * TILE_FLOATS : NULL);
    for (int64_t step = n_steps; step > 0; step--) {
        _tile_stream_loadd(4, a, NMLP_LINE_BYTES); /* L1 is for the weights */
        _tile_loadd(6, b0, NMLP_LINE_BYTES);
        multiply_left(int8, true);
        _tile_loadd(7, b1, NMLP_LINE_BYTES);
        multiply_right(int8, true);
        fetch_weights(ahead0, ahead1, ahead_lines);
        if (low) {
            _tile_stream_loadd(5, a + TILE_BYTES, NMLP_LINE_BYTES);
            multiply_left(int8, false);
            multiply_right(int8, false);
        }
        if (has_far) {
            far.a = a;
            far.b = b0;
            fetch_far(p, &far);
        }
        a += a_step;
        b0 += b_step;
        b1 += b_step;
        ahead0 += ahead_lines * NMLP_LINE_BYTES;
        ahead1 += ahead_lines * NMLP_LINE_BYTES;
        if (--until_store > 0) continue;
        put_rows(p, &f, p->rows_per_store, outcome);
        until_store = f.rows > 0 ? p->steps_between + 1 : INT64_MAX;
    }
    if (f.rows > 0) put_rows(p, &f, f.rows, outcome); /* before the sums below may take their place */
    nmlp_amx_settle_memory();
    store_sums(nmlp_gemm_panel_sums(p, i), low);
    if (p->scales) finish_sums(p, i, low ? TILE : HALF);
}

/* Every combination has a loop of its own. */
INLINE void multiply_by_outcome(const nmlp_gemm_panel *p, int64_t i, const bool low, const bool int8) {
    switch (p->finished->outcome) {
    case NMLP_STORE_BY_CALLBACK: multiply_tile(p, i, low, NMLP_STORE_BY_CALLBACK, int8); break;
    case NMLP_STORE_LINES: multiply_tile(p, i, low, NMLP_STORE_LINES, int8); break;
    case NMLP_STORE_GATED_LINES: multiply_tile(p, i, low, NMLP_STORE_GATED_LINES, int8); break;
    case NMLP_STORE_ROWS: multiply_tile(p, i, low, NMLP_STORE_ROWS, int8); break;
    case NMLP_STORE_ADDED_ROWS: multiply_tile(p, i, low, NMLP_STORE_ADDED_ROWS, int8); break;
    }
}

static void full_tile(const nmlp_gemm_panel *p, int64_t i) { multiply_by_outcome(p, i, true, false); }
static void half_tile(const nmlp_gemm_panel *p, int64_t i) { multiply_by_outcome(p, i, false, false); }
static void full_int8_tile(const nmlp_gemm_panel *p, int64_t i) { multiply_by_outcome(p, i, true, true); }
static void half_int8_tile(const nmlp_gemm_panel *p, int64_t i) { multiply_by_outcome(p, i, false, true); }

void nmlp_gemm_panel_amx(const nmlp_gemm_panel *p) {
    void (*full)(const nmlp_gemm_panel *, int64_t) = p->row_scales ? full_int8_tile : full_tile;
    void (*half)(const nmlp_gemm_panel *, int64_t) = p->row_scales ? half_int8_tile : half_tile;
    for (int64_t i = 0; i * TILE < p->rows; i++) {
        nmlp_amx_settle_memory();
        (p->rows - i * TILE > HALF ? full : half)(p, i);
        nmlp_amx_settle_memory();
        *p->finished = nmlp_gemm_panel_finished(p, i);
    }
}
