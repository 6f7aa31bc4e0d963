/* Reference of the gated MLPs: y = (silu(x Wg) * (x Wu)) Wd, each W dense or two factors; without a down projection the
 * gated activation itself is the result. */
#ifndef NMLP_TRAINIUM_SIM_CHECK_MLP_H
#define NMLP_TRAINIUM_SIM_CHECK_MLP_H

#include "trainium/sim/check.h"

bool nmlp_check_is_mlp(const nmlp_program *program);
/* Up to 16 rows, every column, against float64, relative to the largest value or, where sums cancel, to the root of
 * their terms' squares. The limit is three times that of a chain: the gate multiplies two
 * values that each carry the error of a chain, and the down projection adds its own. */
nmlp_status nmlp_check_mlp(nmlp_check_report *report, nmlp_values *values, const nmlp_program *program,
                           const int64_t *rows, int n_rows, nmlp_err *err);

#endif
