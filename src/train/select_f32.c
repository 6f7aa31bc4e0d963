/* Which set of training arithmetic to use. */
#include <string.h>

#include "kernels/cpu.h"
#include "train/ops_int.h"

const nmlp_ops *nmlp_ops_select(const char *isa) {
    bool any = !isa || strcmp(isa, "auto") == 0;
#if defined(__x86_64__)
    nmlp_cpu cpu = nmlp_cpu_detect();
    if (cpu.avx512 && (any || strcmp(isa, "avx512") == 0)) return &nmlp_ops_f32_avx512;
    if (cpu.avx2_fma && (any || strcmp(isa, "avx2") == 0)) return &nmlp_ops_f32_avx2;
#endif
    (void)any;
    return &nmlp_ops_f32_ref;
}
