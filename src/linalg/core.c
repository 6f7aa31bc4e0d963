/* Which kernels OpenBLAS took, and whether they suit the CPU. */
#include <cblas.h>
#include <string.h>

#include "linalg/linalg.h"

void nmlp_linalg_init(void) { openblas_set_num_threads(1); }

const char *nmlp_linalg_core(void) { return openblas_get_corename(); }

const char *nmlp_linalg_better_core_than(const char *core, bool has_avx2, bool has_avx512) {
    static const char *const old[] = {"Prescott",   "Core2",     "Penryn", "Dunnington", "Nehalem", "Katmai",
                                      "Coppermine", "Northwood", "Banias", "Atom",       "Generic", "generic"};
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++)
        if (strcmp(core, old[i]) == 0) return has_avx512 ? "SkylakeX" : has_avx2 ? "Haswell" : NULL;
    return NULL;
}

const char *nmlp_linalg_better_core(void) {
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    return nmlp_linalg_better_core_than(nmlp_linalg_core(), avx2, avx512);
#else
    return NULL;
#endif
}
