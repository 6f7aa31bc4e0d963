/* Which kernels OpenBLAS took, and whether they suit the CPU. */
#include <string.h>

#include "base/cpu.h"
#include "linalg/linalg.h"
#include "linalg/openblas.h"

int nmlp_linalg_begin(void) {
    int n_threads = nmlp_openblas_get()->get_num_threads();
    nmlp_openblas_get()->set_num_threads(1);
    return n_threads;
}

void nmlp_linalg_end(int n_threads) { nmlp_openblas_get()->set_num_threads(n_threads); }

const char *nmlp_linalg_core(void) {
    const nmlp_openblas *blas = nmlp_openblas_get();
    return blas ? blas->get_corename() : "none";
}

const char *nmlp_linalg_better_core_than(const char *core, bool has_avx2, bool has_avx512) {
    static const char *const old[] = {"Prescott",   "Core2",     "Penryn", "Dunnington", "Nehalem", "Katmai",
                                      "Coppermine", "Northwood", "Banias", "Atom",       "Generic", "generic"};
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++)
        if (strcmp(core, old[i]) == 0) return has_avx512 ? "SkylakeX" : has_avx2 ? "Haswell" : NULL;
    return NULL;
}

const char *nmlp_linalg_better_core(void) {
    const nmlp_cpu *cpu = nmlp_cpu_get();
    return nmlp_linalg_better_core_than(nmlp_linalg_core(), cpu->avx2_fma, cpu->avx512);
}
