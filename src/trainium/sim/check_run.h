/* A kernel's values from beginning to end: random operands, run, comparison with float64 (sim/check.h). */
#ifndef NMLP_TRAINIUM_SIM_CHECK_RUN_H
#define NMLP_TRAINIUM_SIM_CHECK_RUN_H

#include "base/progress.h"
#include "trainium/sim/check.h"

/* Fails with NMLP_E_NUMERIC, the report filled, where the values are wrong. `progress` may be NULL. */
nmlp_status nmlp_check_run(nmlp_check_report *report, const nmlp_program *program, uint64_t seed, nmlp_pool *pool,
                           const nmlp_progress *progress, nmlp_err *err);

#endif
