/* The portable set: plain C, runs everywhere. */
#include "kernels/kernels_int.h"

static bool always(const nmlp_cpu *cpu) {
    (void)cpu;
    return true;
}

const nmlp_kernels nmlp_kernels_ref = {.name = "ref", .supported = always};
