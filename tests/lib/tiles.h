/* AMX's tile instructions in plain C, included before all else in files compiled for AMX: the amx kernel set can so be
 * tested, its own code, on machines without tiles. What a thread's configuration does not give a tile stays zero, as
 * the processor has it. */
#ifndef NMLP_TEST_TILES_H
#define NMLP_TEST_TILES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { NMLP_TEST_TILES = 8, NMLP_TEST_TILE_ROWS = 16, NMLP_TEST_TILE_BYTES = 64 };

typedef struct nmlp_test_tiles {
    uint8_t head[16];
    uint16_t row_bytes[NMLP_TEST_TILE_ROWS];
    uint8_t rows[NMLP_TEST_TILE_ROWS];
    uint8_t tile[NMLP_TEST_TILES][NMLP_TEST_TILE_ROWS][NMLP_TEST_TILE_BYTES];
} nmlp_test_tiles;

extern _Thread_local nmlp_test_tiles nmlp_test_tiles_of_thread; /* tiles.c */

/* The first 64 bytes are what LDTILECFG reads. */
static inline void nmlp_test_tile_loadconfig(const void *config) { memcpy(&nmlp_test_tiles_of_thread, config, 64); }

static inline void nmlp_test_tile_release(void) {
    memset(&nmlp_test_tiles_of_thread, 0, sizeof nmlp_test_tiles_of_thread);
}

static inline void nmlp_test_tile_zero(int tile) {
    memset(nmlp_test_tiles_of_thread.tile[tile], 0, sizeof nmlp_test_tiles_of_thread.tile[tile]);
}

static inline void nmlp_test_tile_loadd(int tile, const void *from, size_t stride) {
    nmlp_test_tiles *t = &nmlp_test_tiles_of_thread;
    nmlp_test_tile_zero(tile);
    for (int row = 0; row < t->rows[tile]; row++)
        memcpy(t->tile[tile][row], (const char *)from + (size_t)row * stride, t->row_bytes[tile]);
}

static inline void nmlp_test_tile_stream_loadd(int tile, const void *from, size_t stride) {
    nmlp_test_tile_loadd(tile, from, stride);
}

static inline void nmlp_test_tile_stored(int tile, void *to, size_t stride) {
    const nmlp_test_tiles *t = &nmlp_test_tiles_of_thread;
    for (int row = 0; row < t->rows[tile]; row++)
        memcpy((char *)to + (size_t)row * stride, t->tile[tile][row], t->row_bytes[tile]);
}

static inline float nmlp_test_tile_bf16(const uint8_t *row, int at) {
    uint16_t half;
    memcpy(&half, row + 2 * at, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* C [rows,n] += A [rows,k pairs] B [k, n pairs]. */
static inline void nmlp_test_tile_dpbf16ps(int c, int a, int b) {
    nmlp_test_tiles *t = &nmlp_test_tiles_of_thread;
    for (int row = 0; row < t->rows[c]; row++)
        for (int k = 0; k < t->row_bytes[a] / 4; k++)
            for (int n = 0; n < t->row_bytes[c] / 4; n++) {
                const uint8_t *x = t->tile[a][row], *y = t->tile[b][k];
                float sum;
                memcpy(&sum, t->tile[c][row] + 4 * n, sizeof sum);
                sum += nmlp_test_tile_bf16(x, 2 * k) * nmlp_test_tile_bf16(y, 2 * n) +
                       nmlp_test_tile_bf16(x, 2 * k + 1) * nmlp_test_tile_bf16(y, 2 * n + 1);
                memcpy(t->tile[c][row] + 4 * n, &sum, sizeof sum);
            }
}

/* The same with four bytes at a time. */
static inline void nmlp_test_tile_dpbssd(int c, int a, int b) {
    nmlp_test_tiles *t = &nmlp_test_tiles_of_thread;
    for (int row = 0; row < t->rows[c]; row++)
        for (int k = 0; k < t->row_bytes[a] / 4; k++)
            for (int n = 0; n < t->row_bytes[c] / 4; n++) {
                int32_t sum;
                memcpy(&sum, t->tile[c][row] + 4 * n, sizeof sum);
                for (int i = 0; i < 4; i++)
                    sum += (int8_t)t->tile[a][row][4 * k + i] * (int8_t)t->tile[b][k][4 * n + i];
                memcpy(t->tile[c][row] + 4 * n, &sum, sizeof sum);
            }
}

/* Compilers have some of these as functions, others as macros. */
#undef _tile_loadconfig
#define _tile_loadconfig nmlp_test_tile_loadconfig
#undef _tile_release
#define _tile_release nmlp_test_tile_release
#undef _tile_loadd
#define _tile_loadd nmlp_test_tile_loadd
#undef _tile_stream_loadd
#define _tile_stream_loadd nmlp_test_tile_stream_loadd
#undef _tile_stored
#define _tile_stored nmlp_test_tile_stored
#undef _tile_zero
#define _tile_zero nmlp_test_tile_zero
#undef _tile_dpbf16ps
#define _tile_dpbf16ps nmlp_test_tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_dpbssd nmlp_test_tile_dpbssd

#endif
