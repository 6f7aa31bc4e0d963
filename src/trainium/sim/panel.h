/* One nc_matmul on the CPU: out[M,N] (+)= a[K,M]^T b[K,N] in fp32.
 *
 * Every element is a chain of fused multiply-adds over k = 0, 1, …, started at 0 and then stored or added: the same
 * order on every instruction set, so results do not depend on the CPU. Products of 16-bit operands are exact in fp32.
 */
#ifndef NMLP_TRAINIUM_SIM_PANEL_H
#define NMLP_TRAINIUM_SIM_PANEL_H

#include <stdbool.h>
#include <stdint.h>

enum { NMLP_PANEL_K_MAX = 128, NMLP_PANEL_M_MAX = 128, NMLP_PANEL_SCRATCH = 128 * 144 + 128 * 32 };

typedef struct nmlp_panel {
    float *out;
    const float *a, *b;
    int64_t out_stride, a_stride, b_stride; /* elements between rows */
    int m, k;                               /* up to 128 each */
    bool accumulate;
} nmlp_panel;

/* Columns [n_begin, n_end); `scratch` has NMLP_PANEL_SCRATCH floats, 64-byte aligned, one per thread. */
typedef void nmlp_panel_fn(const nmlp_panel *panel, int64_t n_begin, int64_t n_end, float *scratch);

nmlp_panel_fn nmlp_panel_generic, nmlp_panel_avx2, nmlp_panel_avx512;

/* The fastest this CPU has. */
nmlp_panel_fn *nmlp_panel_choose(void);

#endif
