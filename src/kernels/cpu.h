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

/* How far AMX tiles get on this machine; each needs the one before. */
typedef struct nmlp_amx_state {
    bool in_cpu;    /* announced by the CPU, with bf16 */
    bool enabled;   /* by the operating system */
    bool permitted; /* to this process (arch_prctl); threads started later inherit it */
    bool work;      /* a tile computed what it should, tried in a child process */
} nmlp_amx_state;

nmlp_amx_state nmlp_amx_detect(void);

#endif
