#include <immintrin.h>

#include "kernels/gemm/gemm.h"
#include "bench/probe_internal.h"

static const double FLOP_PER_TILE = 16.0 * 16.0 * 32.0 * 2.0;

double nmlp_probe_loop_amx_registers(int64_t n) {
    nmlp_gemm_amx.begin();
    for (int64_t at = 0; at < n; at++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    nmlp_gemm_amx.end();
    return (double)n * 4.0 * FLOP_PER_TILE;
}

double nmlp_probe_loop_amx_fed(int64_t n, const void *a, int64_t a_steps, const void *b, int64_t b_steps) {
    nmlp_gemm_amx.begin();
    for (int64_t at = 0; at < n; at++) {
        for (int64_t step = 0; step < b_steps; step++) {
            const char *a_tile = (const char *)a + step % a_steps * 2048;
            const char *b_tile = (const char *)b + step * 2048;
            _tile_loadd(4, a_tile, 64);
            _tile_loadd(6, b_tile, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b_tile + 1024, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, a_tile + 1024, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    nmlp_gemm_amx.end();
    return (double)(n * b_steps) * 4.0 * FLOP_PER_TILE;
}

double nmlp_probe_loop_amx_int8_fed(int64_t n, const void *a, int64_t a_steps, const void *b, int64_t b_steps) {
    nmlp_gemm_amx.begin();
    for (int64_t at = 0; at < n; at++) {
        for (int64_t step = 0; step < b_steps; step++) {
            const char *a_tile = (const char *)a + step % a_steps * 2048;
            const char *b_tile = (const char *)b + step * 2048;
            _tile_loadd(4, a_tile, 64);
            _tile_loadd(6, b_tile, 64);
            _tile_dpbssd(0, 4, 6);
            _tile_loadd(7, b_tile + 1024, 64);
            _tile_dpbssd(1, 4, 7);
            _tile_loadd(5, a_tile + 1024, 64);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
    }
    nmlp_gemm_amx.end();
    return (double)(n * b_steps) * 4.0 * 2.0 * FLOP_PER_TILE;
}
