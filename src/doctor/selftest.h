/* Does a kernel set compute here what it should? One small product per set, compared with float64. */
#ifndef NMLP_DOCTOR_SELFTEST_H
#define NMLP_DOCTOR_SELFTEST_H

#include <stdbool.h>

#include "base/status.h"
#include "kernels/kernels.h"

/* `sound` receives the verdict on the set named `isa`; the status says whether it could be tried. */
nmlp_status nmlp_selftest_set(bool *sound, const nmlp_cpu *cpu, const char *isa, nmlp_err *err);

#endif
