#define _GNU_SOURCE /* syscall */
#include "kernels/cpu.h"

#include <stdint.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <errno.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/gemm/gemm.h"

enum {
    LEAF1_ECX_FMA = 1 << 12,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF1_ECX_AVX = 1 << 28,
    LEAF1_ECX_F16C = 1 << 29,
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_AVX512F = 1 << 16,
    LEAF7_EBX_AVX512DQ = 1 << 17,
    LEAF7_EBX_AVX512BW = 1 << 30,
    LEAF7_ECX_AVX512_VBMI = 1 << 1,
    LEAF7_EDX_AMX_BF16 = 1 << 22,
    LEAF7_EDX_AMX_TILE = 1 << 24,
    LEAF7_1_EAX_AVX512_BF16 = 1 << 5,
    XCR0_AVX = 0x06,         /* SSE, AVX state */
    XCR0_AVX512 = 0xe6,      /* and opmask, ZMM */
    XCR0_AMX = 0x60000,      /* tile configuration and data */
    REQ_XCOMP_PERM = 0x1023, /* arch_prctl: permission for a dynamically enabled state */
    XFEATURE_TILE_DATA = 18
};

static const uint32_t LEAF7_EBX_AVX512VL = 1u << 31;

static uint64_t enabled_state(void) {
    uint32_t low;
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

/* Linux hands out tile state on request only. Threads started later inherit the permission. */
static bool tiles_permitted(void) { return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0; }

/* Tries a tile in a child process: a hypervisor that announces tiles without providing them kills only that. */
static bool tiles_work(void) {
    int status;
    pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) _exit(nmlp_amx_computes() ? 0 : 1);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

nmlp_amx_state nmlp_amx_detect(void) {
    nmlp_amx_state tiles = {0};
    uint32_t a;
    uint32_t b;
    uint32_t c;
    uint32_t d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, LEAF1_ECX_OSXSAVE)) return tiles;
    tiles.in_cpu = __get_cpuid_count(7, 0, &a, &b, &c, &d) && has(d, LEAF7_EDX_AMX_BF16 | LEAF7_EDX_AMX_TILE);
    tiles.enabled = tiles.in_cpu && (enabled_state() & XCR0_AMX) == XCR0_AMX;
    tiles.permitted = tiles.enabled && tiles_permitted();
    tiles.work = tiles.permitted && tiles_work();
    return tiles;
}

nmlp_cpu nmlp_cpu_detect(void) {
    nmlp_cpu cpu = {0};
    uint32_t a;
    uint32_t b;
    uint32_t c;
    uint32_t d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX)) return cpu;
    bool fma_f16c = has(c, LEAF1_ECX_FMA | LEAF1_ECX_F16C);
    uint64_t state = enabled_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return cpu;
    uint32_t avx512 = LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL;
    cpu.avx2_fma = fma_f16c && has(b, LEAF7_EBX_AVX2) && (state & XCR0_AVX) == XCR0_AVX;
    cpu.avx512 = cpu.avx2_fma && has(b, avx512) && (state & XCR0_AVX512) == XCR0_AVX512;
    bool vbmi = has(c, LEAF7_ECX_AVX512_VBMI);
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        cpu.avx512_bf16 = cpu.avx512 && has(a, LEAF7_1_EAX_AVX512_BF16);
    cpu.amx_bf16 = cpu.avx512_bf16 && vbmi && nmlp_amx_detect().work; /* every CPU with tiles has both */
    return cpu;
}

#else

nmlp_cpu nmlp_cpu_detect(void) { return (nmlp_cpu){0}; }

nmlp_amx_state nmlp_amx_detect(void) { return (nmlp_amx_state){0}; }

#endif
