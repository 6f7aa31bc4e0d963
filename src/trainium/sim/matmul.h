/* One nc_matmul on the CPU: out[M,N] (+)= a[K,M]^T b[K,N] in fp32.
 *
 * Every element is a chain of fused multiply-adds over k = 0, 1, …, started at 0 and then stored or added: the same
 * order on every instruction set, so results do not depend on the CPU. Products of 16-bit operands are exact in fp32.
 */
#ifndef NMLP_TRAINIUM_SIM_MATMUL_H
#define NMLP_TRAINIUM_SIM_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

enum { NMLP_SIM_MATMUL_K_MAX = 128, NMLP_SIM_MATMUL_M_MAX = 128, NMLP_SIM_MATMUL_SCRATCH = 128 * 144 + 128 * 32 };

typedef struct nmlp_sim_matmul {
    float *out;
    const float *a, *b;
    int64_t out_stride, a_stride, b_stride; /* elements between rows */
    int m, k;                               /* up to 128 each */
    bool accumulate;
} nmlp_sim_matmul;

/* Columns [n_begin, n_end); `scratch` has NMLP_SIM_MATMUL_SCRATCH floats, 64-byte aligned, one per thread. */
typedef void nmlp_sim_matmul_fn(const nmlp_sim_matmul *mm, int64_t n_begin, int64_t n_end, float *scratch);

nmlp_sim_matmul_fn nmlp_sim_matmul_generic, nmlp_sim_matmul_avx2, nmlp_sim_matmul_avx512;

/* The fastest this CPU has. */
nmlp_sim_matmul_fn *nmlp_sim_matmul_choose(void);

#endif
