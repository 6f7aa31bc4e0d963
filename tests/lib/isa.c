/* Lets a whole test program run as on a lesser CPU: NMLP_TEST_ISA=ref, avx2, avx512 or avx512bf16 hides every
 * instruction set above the one named. The linker puts this between the library and its own nmlp_cpu_get (--wrap); the
 * library itself reads no environment. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"

const nmlp_cpu *__real_nmlp_cpu_get(void);
const nmlp_cpu *__wrap_nmlp_cpu_get(void);

static nmlp_cpu limited;
static pthread_once_t limited_once = PTHREAD_ONCE_INIT;

static void limit(void) {
    static const char *const names[] = {"ref", "avx2", "avx512", "avx512bf16", "auto"};
    const char *isa = getenv("NMLP_TEST_ISA");
    int level = 0;
    limited = *__real_nmlp_cpu_get();
    if (!isa || !*isa) return;
    while (level < 5 && strcmp(isa, names[level]) != 0) level++;
    if (level == 5) {
        fprintf(stderr, "NMLP_TEST_ISA=%s: expected ref, avx2, avx512, avx512bf16 or auto\n", isa);
        abort();
    }
    nmlp_cpu all = limited;
    if (level < 4) limited = (nmlp_cpu){.avx2_fma = level >= 1 && all.avx2_fma};
    if (level == 2 || level == 3) {
        limited.avx512 = all.avx512;
        limited.avx512_bf16 = all.avx512_bf16;
        limited.avx512_vnni = all.avx512_vnni;
    }
    if (level == 3) {
        limited.avx512_vbmi = all.avx512_vbmi;
        limited.bf16_dot_is_fast = all.avx512_bf16; /* chosen even where AVX-512 in f32 is as fast */
    }
}

const nmlp_cpu *__wrap_nmlp_cpu_get(void) {
    pthread_once(&limited_once, limit);
    return &limited;
}
