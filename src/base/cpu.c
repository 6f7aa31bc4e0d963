#define _GNU_SOURCE /* syscall */
#include "base/cpu.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

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
    LEAF7_ECX_AVX512_VNNI = 1 << 11,
    LEAF7_EDX_AMX_BF16 = 1 << 22,
    LEAF7_EDX_AMX_TILE = 1 << 24,
    LEAF7_1_EAX_AVX512_BF16 = 1 << 5,
    XCR0_AVX = 0x06,         /* SSE, AVX state */
    XCR0_AVX512 = 0xe6,      /* and opmask, ZMM */
    XCR0_AMX = 0x60000,      /* tile configuration and data */
    REQ_XCOMP_PERM = 0x1023, /* arch_prctl: permission for a dynamically enabled state */
    XFEATURE_TILE_DATA = 18
};

static const uint32_t LEAF7_EBX_AVX512VL = 1u << 31, LEAF_NAME = 0x80000002u;

static uint64_t enabled_state(void) {
    uint32_t low;
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

/* Linux gives tile state to a process on request only. */
static bool tiles_permitted(void) { return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0; }

static nmlp_cpu_amx detect_amx(uint32_t leaf7_edx, uint64_t state) {
    nmlp_cpu_amx amx = {.in_cpu = has(leaf7_edx, LEAF7_EDX_AMX_BF16 | LEAF7_EDX_AMX_TILE)};
    amx.enabled = amx.in_cpu && (state & XCR0_AMX) == XCR0_AMX;
    amx.permitted = amx.enabled && tiles_permitted();
    return amx;
}

static void read_name(char name[NMLP_CPU_NAME_BYTES]) {
    char text[NMLP_CPU_NAME_BYTES] = {0};
    uint32_t words[4];
    for (uint32_t i = 0; i < 3; i++) {
        if (!__get_cpuid(LEAF_NAME + i, &words[0], &words[1], &words[2], &words[3])) return;
        memcpy(text + i * sizeof words, words, sizeof words);
    }
    const char *first = text + strspn(text, " ");
    size_t len = strlen(first);
    while (len > 0 && first[len - 1] == ' ') len--;
    memcpy(name, first, len);
    name[len] = '\0';
}

/* On AMD's processors VDPBF16PS comes at the rate of FMA (measured on Zen 5). Intel's newer ones have tiles for such
 * products; on those without, nobody has measured that it pays. */
static bool is_amd(void) {
    uint32_t most;
    char vendor[12];
    uint32_t b;
    uint32_t c;
    uint32_t d;
    if (!__get_cpuid(0, &most, &b, &c, &d)) return false;
    memcpy(vendor, &b, sizeof b);
    memcpy(vendor + sizeof b, &d, sizeof d);
    memcpy(vendor + sizeof b + sizeof d, &c, sizeof c);
    return memcmp(vendor, "AuthenticAMD", sizeof vendor) == 0;
}

static nmlp_cpu detect(void) {
    nmlp_cpu cpu = {0};
    read_name(cpu.name);
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
    cpu.avx512_vnni = cpu.avx512 && has(c, LEAF7_ECX_AVX512_VNNI);
    cpu.amx = detect_amx(d, state);
    cpu.avx512_vbmi = cpu.avx512 && has(c, LEAF7_ECX_AVX512_VBMI);
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        cpu.avx512_bf16 = cpu.avx512 && has(a, LEAF7_1_EAX_AVX512_BF16);
    cpu.bf16_dot_is_fast = cpu.avx512_bf16 && is_amd();
    cpu.amx_bf16 = cpu.avx512_bf16 && cpu.avx512_vbmi && cpu.amx.permitted;
    return cpu;
}

#else

static nmlp_cpu detect(void) { return (nmlp_cpu){0}; }

#endif

/* Constant once filled. */
static nmlp_cpu found;
static pthread_once_t found_once = PTHREAD_ONCE_INIT;

static void find(void) { found = detect(); }

const nmlp_cpu *nmlp_cpu_get(void) {
    pthread_once(&found_once, find);
    return &found;
}
