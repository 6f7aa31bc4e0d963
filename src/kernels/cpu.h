/* What the CPU in front of us can do. A plain value: tests make their own to force a path. */
#ifndef NMLP_KERNELS_CPU_H
#define NMLP_KERNELS_CPU_H

#include <stdbool.h>

typedef struct nmlp_cpu {
    bool avx2_fma; /* AVX2, FMA and F16C */
    bool avx512;   /* F, BW, DQ, VL */
    bool avx512_bf16;
    bool amx_bf16; /* tiles, bf16, and the operating system's permission to use them */
} nmlp_cpu;

nmlp_cpu nmlp_cpu_detect(void);

#endif
