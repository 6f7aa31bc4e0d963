/* Blocks of 32 x 32 in 2 x 2 AMX tiles: bf16 activations and weights, f32 sums. */
#include <immintrin.h>

#include "kernels/gemm.h"

enum { MR = 32, STRIPS = 2, NR = STRIPS * NMLP_STRIP, TILE_K = 32, TILE_ROWS = 16, TILE_BYTES = 1024 };
enum { C_STRIDE = NR * (int)sizeof(float), ROW_BLOCK = TILE_ROWS * NR };

/* Palette 1: eight tiles of 16 rows of 64 bytes. The CPUID leaves that would say so are hidden by hypervisors. */
typedef struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "LDTILECFG reads 64 bytes");

static void begin(void) {
    tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = NMLP_LINE_BYTES;
        config.rows[i] = TILE_ROWS;
    }
    /* gcc 12 believes that only 8 bytes are read and drops the stores above. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

static void end(void) { _tile_release(); }

/* Tiles 0..3 are C (row half, strip), 4 and 5 A, 6 and 7 B. Strides are constants of the layout. */
static void block_bf16(const nmlp_block *p) {
    const char *a = p->a;
    const char *b0 = p->b;
    const char *b1 = b0 + p->b_step;
    float *c = p->c;
    if (p->accumulate) {
        _tile_loadd(0, c, C_STRIDE);
        _tile_loadd(1, c + NMLP_STRIP, C_STRIDE);
        _tile_loadd(2, c + ROW_BLOCK, C_STRIDE);
        _tile_loadd(3, c + ROW_BLOCK + NMLP_STRIP, C_STRIDE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < p->k; k += TILE_K, a += p->a_step, b0 += TILE_BYTES, b1 += TILE_BYTES) {
        _tile_loadd(4, a, NMLP_LINE_BYTES);
        _tile_loadd(6, b0, NMLP_LINE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b1, NMLP_LINE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + TILE_BYTES, NMLP_LINE_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, C_STRIDE);
    _tile_stored(1, c + NMLP_STRIP, C_STRIDE);
    _tile_stored(2, c + ROW_BLOCK, C_STRIDE);
    _tile_stored(3, c + ROW_BLOCK + NMLP_STRIP, C_STRIDE);
}

const nmlp_gemm nmlp_gemm_amx = {
    .mr = MR,
    .strips = STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .block = {[NMLP_DTYPE_BF16] = block_bf16},
    .begin = begin,
    .end = end,
};
