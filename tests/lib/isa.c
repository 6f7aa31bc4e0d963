/* Lets a whole test program run as on a lesser CPU: NMLP_TEST_ISA=ref, avx2, avx512 or avx512bf16 hides every
 * instruction set above the one named; tiles adds AMX's, in programs that play them (tiles.h). The linker puts this
 * between the library and its own nmlp_cpu_get (--wrap); the library itself reads no environment. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"

const nmlp_cpu *__real_nmlp_cpu_get(void);
const nmlp_cpu *__wrap_nmlp_cpu_get(void);

static nmlp_cpu limited;
static pthread_once_t limited_once = PTHREAD_ONCE_INIT;

enum { REF, AVX2, AVX512, AVX512BF16, TILES, AUTO, N_LEVELS, SKIPPED = 77 };

static int level_named(const char *name) {
    static const char *const names[N_LEVELS] = {"ref", "avx2", "avx512", "avx512bf16", "tiles", "auto"};
    int level = 0;
    while (level < N_LEVELS && strcmp(name, names[level]) != 0) level++;
    if (level < N_LEVELS) return level;
    fprintf(stderr, "NMLP_TEST_ISA=%s: expected ref, avx2, avx512, avx512bf16, tiles or auto\n", name);
    abort();
}

static nmlp_cpu lesser(const nmlp_cpu *all, int level) {
    nmlp_cpu cpu = {.avx2_fma = level >= AVX2 && all->avx2_fma};
    if (level >= AVX512) {
        cpu.avx512 = all->avx512;
        cpu.avx512_bf16 = all->avx512_bf16;
        cpu.avx512_vnni = all->avx512_vnni;
    }
    if (level >= AVX512BF16) {
        cpu.avx512_vbmi = all->avx512_vbmi;
        cpu.bf16_dot_is_fast = all->avx512_bf16; /* chosen even where AVX-512 in f32 is as fast */
    }
    return cpu;
}

static nmlp_cpu with_tiles(const nmlp_cpu *all) {
    nmlp_cpu cpu = *all;
    if (!all->avx512_bf16 || !all->avx512_vbmi || !all->avx512_vnni) {
        printf("SKIPPED: kernel set \"amx\", its tiles played, needs instructions this CPU lacks\n");
        fflush(stdout);
        _exit(SKIPPED);
    }
    cpu.amx = (nmlp_cpu_amx){.in_cpu = true, .enabled = true, .permitted = true};
    cpu.amx_bf16 = true;
    return cpu;
}

static void limit(void) {
    const char *isa = getenv("NMLP_TEST_ISA");
    const nmlp_cpu *all = __real_nmlp_cpu_get();
    int level = isa && *isa ? level_named(isa) : AUTO;
    limited = level == AUTO ? *all : level == TILES ? with_tiles(all) : lesser(all, level);
}

const nmlp_cpu *__wrap_nmlp_cpu_get(void) {
    pthread_once(&limited_once, limit);
    return &limited;
}
