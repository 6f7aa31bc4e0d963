/* Blocks of 32 x 32 in 2 x 2 AMX tiles, and of 16 x 64 in 1 x 4 for few rows: bf16 activations and weights, f32 sums.
 */
#include "kernels/amx_tiles.h"
#include "kernels/delivery_bf16.h"
#include "kernels/gemm.h"

enum { MR = 32, STRIPS = 2, NR = STRIPS * NMLP_STRIP, TILE_K = 32, TILE_ROWS = 16, TILE_BYTES = 1024 };
enum { FEW_STRIPS = 4, FEW_C_STRIDE = FEW_STRIPS * NMLP_STRIP * (int)sizeof(float) };
enum { PREFETCH_STEPS = 4, FEW_PREFETCH_BYTES = 2048 };
enum { C_STRIDE = NR * (int)sizeof(float), ROW_BLOCK = TILE_ROWS * NR };

/* Tiles 0..3 are C (row half, strip), 4 and 5 A, 6 and 7 B. Strides are constants of the layout. */
static void load_c(const float *c, bool accumulate) {
    if (accumulate) {
        _tile_loadd(0, c, C_STRIDE);
        _tile_loadd(1, c + NMLP_STRIP, C_STRIDE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
}

static void load_c_low(const float *c, bool accumulate) {
    if (accumulate) {
        _tile_loadd(2, c + ROW_BLOCK, C_STRIDE);
        _tile_loadd(3, c + ROW_BLOCK + NMLP_STRIP, C_STRIDE);
    } else {
        _tile_zero(2);
        _tile_zero(3);
    }
}

static void fetch_tile(const char *tile) {
    for (int i = 0; i < TILE_BYTES; i += NMLP_LINE_BYTES) _mm_prefetch(tile + i, _MM_HINT_T0);
}

/* Lines `from`.. of one step's share of the weights that come later. */
static inline void fetch_ahead(const char *at, const nmlp_block *p, int from, int to) {
    for (int i = from; i < to && i < p->ahead_lines; i++) {
        _mm_prefetch(at + i * NMLP_LINE_BYTES, _MM_HINT_T1);
        _mm_prefetch(at + p->ahead_step + i * NMLP_LINE_BYTES, _MM_HINT_T1);
    }
}

/* What else comes from further away than L2: in the first block of columns the activations, and sums kept from chunk to
 * chunk of the reduction. */
static inline const char *fetch_operands(const char *a, ptrdiff_t a_step, const char *c, const nmlp_block *p) {
    enum { C_LINES = 2 };
    if (p->far_a)
        for (size_t i = 0; i < p->a_step; i += NMLP_LINE_BYTES) _mm_prefetch(a + 2 * a_step + i, _MM_HINT_T0);
    if (!p->next_c) return c;
    for (int i = 0; i < C_LINES; i++, c += NMLP_LINE_BYTES) _mm_prefetch(c, _MM_HINT_T0);
    return c;
}

static inline __attribute__((always_inline)) void block_32_of(const nmlp_block *p, const nmlp_outcome outcome) {
    nmlp_carrier carrier = nmlp_carrier_of(p->beside);
    int64_t n_steps = p->k / TILE_K;
    int64_t first = p->backwards ? n_steps - 1 : 0;
    ptrdiff_t a_step = p->backwards ? -(ptrdiff_t)p->a_step : (ptrdiff_t)p->a_step;
    ptrdiff_t b_step = p->backwards ? -TILE_BYTES : TILE_BYTES;
    const char *a = (const char *)p->a + first * (ptrdiff_t)p->a_step;
    const char *b0 = (const char *)p->b + first * TILE_BYTES;
    const char *b1 = b0 + p->b_step;
    const char *next_c = (const char *)p->next_c;
    const char *ahead = p->ahead;
    const float *earlier = p->earlier ? p->earlier : p->c;
    float *c = p->c;
    load_c(earlier, p->accumulate);
    load_c_low(earlier, p->accumulate);
    for (int64_t i = 0; i < n_steps; i++, a += a_step, b0 += b_step, b1 += b_step) {
        _tile_stream_loadd(4, a, NMLP_LINE_BYTES); /* L1 is for the weights */
        _tile_loadd(6, b0, NMLP_LINE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        fetch_ahead(ahead, p, 0, 1);
        _tile_loadd(7, b1, NMLP_LINE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        nmlp_carry(&carrier, p->beside, outcome);
        _tile_stream_loadd(5, a + TILE_BYTES, NMLP_LINE_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        fetch_ahead(ahead, p, 1, INT32_MAX);
        _tile_dpbf16ps(3, 5, 7);
        ahead += p->ahead_lines * NMLP_LINE_BYTES;
        next_c = fetch_operands(a, a_step, next_c, p);
        if (!p->stream) continue;
        fetch_tile(b0 + PREFETCH_STEPS * b_step);
        fetch_tile(b1 + PREFETCH_STEPS * b_step);
    }
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + NMLP_STRIP, C_STRIDE);
    _tile_stored(2, c + ROW_BLOCK, C_STRIDE);
    _tile_stored(3, c + ROW_BLOCK + NMLP_STRIP, C_STRIDE);
    if (outcome != NMLP_BY_CALL) nmlp_carrier_return(&carrier, p->beside);
}

static void block_32(const nmlp_block *p) {
    switch (p->beside->described.outcome) {
        case NMLP_BY_CALL: block_32_of(p, NMLP_BY_CALL); break;
        case NMLP_TO_LINES: block_32_of(p, NMLP_TO_LINES); break;
        case NMLP_GATED_LINES: block_32_of(p, NMLP_GATED_LINES); break;
        case NMLP_TO_ROWS: block_32_of(p, NMLP_TO_ROWS); break;
        case NMLP_ADDED_ROWS: block_32_of(p, NMLP_ADDED_ROWS); break;
    }
}

/* Up to 16 rows: half the arithmetic, and B is loaded as ever. */
static void block_16(const nmlp_block *p) {
    int64_t n_steps = p->k / TILE_K;
    const float *earlier = p->earlier ? p->earlier : p->c;
    load_c(earlier, p->accumulate);
    for (int64_t i = 0; i < n_steps; i++) {
        int64_t at = p->backwards ? n_steps - 1 - i : i;
        const char *a = (const char *)p->a + at * (ptrdiff_t)p->a_step;
        const char *b = (const char *)p->b + at * TILE_BYTES;
        _tile_loadd(4, a, NMLP_LINE_BYTES);
        _tile_loadd(6, b, NMLP_LINE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + p->b_step, NMLP_LINE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        fetch_ahead(p->ahead + i * p->ahead_lines * NMLP_LINE_BYTES, p, 0, INT32_MAX);
        nmlp_beside_step(p->beside);
        if (!p->stream) continue;
        fetch_tile(b + PREFETCH_STEPS * (p->backwards ? -TILE_BYTES : TILE_BYTES));
        fetch_tile(b + (ptrdiff_t)p->b_step + PREFETCH_STEPS * (p->backwards ? -TILE_BYTES : TILE_BYTES));
    }
    _tile_stored(0, p->c, C_STRIDE);
    _tile_stored(1, p->c + NMLP_STRIP, C_STRIDE);
}

/* gcc's tile intrinsics do not say which memory they touch. */
static void settle_memory(void) { __asm__ volatile("" : : : "memory"); }

static void block_bf16(const nmlp_block *p) {
    settle_memory();
    if (p->rows > TILE_ROWS)
        block_32(p);
    else
        block_16(p);
    settle_memory();
}

static void load_few_c(const float *c, bool accumulate) {
    if (accumulate) {
        _tile_loadd(0, c, FEW_C_STRIDE);
        _tile_loadd(1, c + NMLP_STRIP, FEW_C_STRIDE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
}

static void load_few_c_right(const float *c, bool accumulate) {
    if (accumulate) {
        _tile_loadd(2, c + 2 * NMLP_STRIP, FEW_C_STRIDE);
        _tile_loadd(3, c + 3 * NMLP_STRIP, FEW_C_STRIDE);
    } else {
        _tile_zero(2);
        _tile_zero(3);
    }
}

/* Up to 16 rows of four strips, which memory delivers faster than two. */
static void few_64(const nmlp_block *p) {
    const char *a = p->a;
    const char *b = p->b;
    const size_t strip = p->b_step;
    const char *far = b + FEW_PREFETCH_BYTES; /* at the end of the strips, the beginning of those that come next */
    size_t far_step = strip;
    load_few_c(p->c, p->accumulate);
    load_few_c_right(p->c, p->accumulate);
    for (int64_t k = 0; k < p->k; k += TILE_K, a += p->a_step, b += TILE_BYTES, far += TILE_BYTES) {
        if (k + FEW_PREFETCH_BYTES / TILE_BYTES * TILE_K == p->k) {
            far = p->ahead;
            far_step = p->ahead_step;
        }
        _tile_loadd(4, a, NMLP_LINE_BYTES);
        _tile_loadd(5, b, NMLP_LINE_BYTES);
        _tile_dpbf16ps(0, 4, 5);
        fetch_tile(far);
        _tile_loadd(6, b + strip, NMLP_LINE_BYTES);
        _tile_dpbf16ps(1, 4, 6);
        fetch_tile(far + far_step);
        _tile_loadd(7, b + 2 * strip, NMLP_LINE_BYTES);
        _tile_dpbf16ps(2, 4, 7);
        fetch_tile(far + 2 * far_step);
        _tile_loadd(5, b + 3 * strip, NMLP_LINE_BYTES);
        _tile_dpbf16ps(3, 4, 5);
        fetch_tile(far + 3 * far_step);
    }
    _tile_stored(0, p->c, FEW_C_STRIDE);
    _tile_stored(1, p->c + NMLP_STRIP, FEW_C_STRIDE);
    _tile_stored(2, p->c + 2 * NMLP_STRIP, FEW_C_STRIDE);
    _tile_stored(3, p->c + 3 * NMLP_STRIP, FEW_C_STRIDE);
}

/* The last two strips of a matrix. */
static void few_32(const nmlp_block *p) {
    const char *a = p->a;
    const char *b = p->b;
    load_few_c(p->c, p->accumulate);
    for (int64_t k = 0; k < p->k; k += TILE_K, a += p->a_step, b += TILE_BYTES) {
        _tile_loadd(4, a, NMLP_LINE_BYTES);
        _tile_loadd(5, b, NMLP_LINE_BYTES);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, b + p->b_step, NMLP_LINE_BYTES);
        _tile_dpbf16ps(1, 4, 6);
    }
    _tile_stored(0, p->c, FEW_C_STRIDE);
    _tile_stored(1, p->c + NMLP_STRIP, FEW_C_STRIDE);
}

static void few_bf16(const nmlp_block *p) {
    settle_memory();
    if (p->strips == FEW_STRIPS)
        few_64(p);
    else
        few_32(p);
    settle_memory();
}

bool nmlp_amx_computes(void) {
    _Alignas(64) uint16_t a[TILE_ROWS * TILE_K];
    _Alignas(64) uint16_t b[STRIPS][TILE_ROWS * TILE_K];
    _Alignas(64) float c[MR * NR];
    for (int i = 0; i < TILE_ROWS * TILE_K; i++) a[i] = b[0][i] = b[1][i] = nmlp_f32_to_bf16(1.0f);
    nmlp_beside nothing = {0};
    nmlp_block block = {.c = c,
                        .a = a,
                        .b = b,
                        .b_step = sizeof b[0],
                        .k = TILE_K,
                        .rows = TILE_ROWS,
                        .strips = STRIPS,
                        .beside = &nothing};
    nmlp_amx_begin();
    block_bf16(&block);
    nmlp_amx_end();
    return c[0] == (float)TILE_K && c[TILE_ROWS * NR - 1] == (float)TILE_K;
}

const nmlp_gemm nmlp_gemm_amx = {
    .mr = MR,
    .strips = STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .works_beside = true,
    .block = {[NMLP_DTYPE_BF16] = block_bf16},
    .begin = nmlp_amx_begin,
    .end = nmlp_amx_end,
};

const nmlp_gemm nmlp_gemm_few_amx = {
    .mr = TILE_ROWS,
    .strips = FEW_STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .block = {[NMLP_DTYPE_BF16] = few_bf16},
    .begin = nmlp_amx_begin,
    .end = nmlp_amx_end,
};
