/* Blocks of 32 x 32 in 2 x 2 AMX tiles, and of 16 x 64 in 1 x 4 for few rows: bf16 activations and weights, f32 sums.
 */
#include "kernels/isa/amx/tile_config_amx.h"
#include "kernels/gemm/panel.h"
#include "kernels/isa/avx512/quant_unpack_avx512bf16.h"

enum { MR = 32, STRIPS = 2, NR = STRIPS * NMLP_STRIP, TILE_K = 32, TILE_ROWS = 16, TILE_BYTES = 1024 };
enum { FEW_STRIPS = 4, FEW_C_STRIDE = FEW_STRIPS * NMLP_STRIP * (int)sizeof(float) };
enum { FEW_PREFETCH_BYTES = 2048 };
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

static void block_32(const nmlp_gemm_microtile *p) {
    const char *a = p->a;
    const char *b0 = p->b;
    const char *b1 = b0 + p->b_step;
    float *c = p->c;
    load_c(c, p->accumulate);
    load_c_low(c, p->accumulate);
    for (int64_t k = 0; k < p->k; k += TILE_K, a += p->a_step, b0 += TILE_BYTES, b1 += TILE_BYTES) {
        _tile_stream_loadd(4, a, NMLP_LINE_BYTES); /* L1 is for the weights */
        _tile_loadd(6, b0, NMLP_LINE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b1, NMLP_LINE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stream_loadd(5, a + TILE_BYTES, NMLP_LINE_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        nmlp_gemm_overlap_step(p->overlap);
    }
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + NMLP_STRIP, C_STRIDE);
    _tile_stored(2, c + ROW_BLOCK, C_STRIDE);
    _tile_stored(3, c + ROW_BLOCK + NMLP_STRIP, C_STRIDE);
}

/* Up to 16 rows: half the arithmetic, and B is loaded as ever. */
static void block_16(const nmlp_gemm_microtile *p) {
    const char *a = p->a;
    const char *b0 = p->b;
    const char *b1 = b0 + p->b_step;
    load_c(p->c, p->accumulate);
    for (int64_t k = 0; k < p->k; k += TILE_K, a += p->a_step, b0 += TILE_BYTES, b1 += TILE_BYTES) {
        _tile_loadd(4, a, NMLP_LINE_BYTES);
        _tile_loadd(6, b0, NMLP_LINE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b1, NMLP_LINE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        nmlp_gemm_overlap_step(p->overlap);
    }
    _tile_stored(0, p->c, C_STRIDE);
    _tile_stored(1, p->c + NMLP_STRIP, C_STRIDE);
}

static void block_bf16(const nmlp_gemm_microtile *p) {
    nmlp_amx_settle_memory();
    if (p->rows > TILE_ROWS)
        block_32(p);
    else
        block_16(p);
    nmlp_amx_settle_memory();
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
static void few_64(const nmlp_gemm_microtile *p) {
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
static void few_32(const nmlp_gemm_microtile *p) {
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

static void few_bf16(const nmlp_gemm_microtile *p) {
    nmlp_amx_settle_memory();
    if (p->strips == FEW_STRIPS)
        few_64(p);
    else
        few_32(p);
    nmlp_amx_settle_memory();
}

const nmlp_gemm nmlp_gemm_amx = {
    .mr = MR,
    .strips = STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .int8_panels = true,
    .microkernel = {[NMLP_DTYPE_BF16] = block_bf16},
    .unpack = nmlp_gemm_quant_unpack_avx512bf16,
    .panel = nmlp_gemm_panel_amx,
    .begin = nmlp_amx_begin,
    .end = nmlp_amx_end,
};

const nmlp_gemm nmlp_gemm_few_amx = {
    .mr = TILE_ROWS,
    .strips = FEW_STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .microkernel = {[NMLP_DTYPE_BF16] = few_bf16},
    .unpack = nmlp_gemm_quant_unpack_avx512bf16,
    .begin = nmlp_amx_begin,
    .end = nmlp_amx_end,
};
