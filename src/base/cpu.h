/* Instruction sets of the CPU this process runs on. */
#ifndef NMLP_BASE_CPU_H
#define NMLP_BASE_CPU_H

#include <stdbool.h>

/* How far AMX tiles get on this machine; each needs the one before. */
typedef struct nmlp_cpu_amx {
    bool in_cpu;    /* announced by CPUID, with bf16 */
    bool enabled;   /* tile state is in XCR0: the operating system saves and restores it */
    bool permitted; /* the kernel lets this process use it */
} nmlp_cpu_amx;

enum { NMLP_CPU_NAME_BYTES = 49 };

typedef struct nmlp_cpu {
    bool avx2_fma; /* AVX2, FMA and F16C */
    bool avx512;   /* F, BW, DQ, VL */
    bool avx512_bf16;
    bool avx512_vnni;      /* 8-bit dot products in 512 bits */
    bool avx512_vbmi;      /* permutations of bytes */
    bool bf16_dot_is_fast; /* avx512_bf16, and its instructions come as fast as FMA (AMD) */
    bool amx_bf16;         /* usable tiles, bf16, and the AVX-512 extensions that every CPU with tiles has */
    nmlp_cpu_amx amx;
    char name[NMLP_CPU_NAME_BYTES]; /* "AMD EPYC"; "" where the CPU does not say */
} nmlp_cpu;

/* Found once per process; every later call returns the same constant. Asks Linux for permission to use AMX tile state
 * where there is any (arch_prctl: it cannot be withdrawn, and costs nothing until a thread touches a tile); changes
 * nothing else and starts no process. */
const nmlp_cpu *nmlp_cpu_get(void);

#endif
