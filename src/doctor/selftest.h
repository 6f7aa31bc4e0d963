/* Does a kernel set compute here what it should? One small product per set, compared with float64. */
#ifndef NMLP_DOCTOR_SELFTEST_H
#define NMLP_DOCTOR_SELFTEST_H

#include <stdbool.h>

#include "base/status.h"
#include "kernels/kernels.h"

/* `sound` receives the verdict; the status says whether the set could be tried. */
nmlp_status nmlp_selftest(bool *sound, const nmlp_kernels *set, nmlp_err *err);

#endif
