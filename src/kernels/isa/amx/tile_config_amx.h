/* The tile configuration of a thread that multiplies on AMX. For files compiled for AMX only. */
#ifndef NMLP_KERNELS_ISA_AMX_TILE_CONFIG_AMX_H
#define NMLP_KERNELS_ISA_AMX_TILE_CONFIG_AMX_H

#include <immintrin.h>
#include <stdint.h>

/* What LDTILECFG reads. */
typedef struct nmlp_tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} nmlp_tile_config;

_Static_assert(sizeof(nmlp_tile_config) == 64, "LDTILECFG reads 64 bytes");

/* Palette 1: eight tiles of 16 rows of 64 bytes. The CPUID leaves that would say so are hidden by hypervisors. */
static inline void nmlp_amx_begin(void) {
    nmlp_tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    /* gcc 12 believes that only 8 bytes are read and drops the stores above. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

/* gcc's tile intrinsics do not say which memory they touch: stands wherever tiles read what was stored before, or what
 * they stored is read. */
static inline void nmlp_amx_settle_memory(void) { __asm__ volatile("" : : : "memory"); }

static inline void nmlp_amx_end(void) { _tile_release(); }

#endif
