/* Scores of heads of 64 dimensions: a tile's queries fill four tile registers and stay there, so that only keys are
 * loaded, half of what blocks load. */
#include "kernels/isa/amx/tile_config_amx.h"
#include "kernels/kernels_internal.h"

enum {
    TILE_BYTES = 1024,
    STRIP_BYTES = 2 * TILE_BYTES,
    ROW_BYTES = NMLP_PAD * (int)sizeof(float),
    LOWER_ROWS = 16 * NMLP_PAD /* floats */
};

/* 32 rows, 16 keys. Tiles 0 and 1 are scores, 2 and 3 keys, 4 to 7 queries: upper and lower rows of 32 dimensions, then
 * of the others. */
static inline void score_strip(float *c, const char *strip, nmlp_gemm_overlap *overlap) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(2, strip, NMLP_LINE_BYTES);
    _tile_dpbf16ps(0, 4, 2);
    _tile_dpbf16ps(1, 5, 2);
    _tile_loadd(3, strip + TILE_BYTES, NMLP_LINE_BYTES);
    _tile_dpbf16ps(0, 6, 3);
    _tile_dpbf16ps(1, 7, 3);
    nmlp_amx_settle_memory();
    nmlp_gemm_overlap_step(overlap);
    nmlp_amx_settle_memory();
    _tile_stored(0, c, ROW_BYTES);
    _tile_stored(1, c + LOWER_ROWS, ROW_BYTES);
}

void nmlp_scores_64_amx(float *c, const void *queries, const void *strips, int64_t n, nmlp_gemm_overlap *overlap) {
    const char *q = queries;
    const char *strip = strips;
    nmlp_amx_settle_memory();
    _tile_loadd(4, q, NMLP_LINE_BYTES);
    _tile_loadd(5, q + TILE_BYTES, NMLP_LINE_BYTES);
    _tile_loadd(6, q + 2 * TILE_BYTES, NMLP_LINE_BYTES);
    _tile_loadd(7, q + 3 * TILE_BYTES, NMLP_LINE_BYTES);
    for (int64_t at = 0; at < n; at += NMLP_PAD, c += NMLP_PAD * NMLP_PAD, strip += 2 * STRIP_BYTES) {
        score_strip(c, strip, overlap);
        score_strip(c + NMLP_STRIP, strip + STRIP_BYTES, overlap);
    }
    nmlp_amx_settle_memory();
}
