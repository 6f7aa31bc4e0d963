#include "trainium/sim/check_run.h"

nmlp_status nmlp_check_run(nmlp_check_report *report, const nmlp_program *program, uint64_t seed, nmlp_pool *pool,
                           const nmlp_progress *progress, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_values *values = NULL;
    NMLP_TRY(nmlp_values_create(&values, program, pool, err));
    NMLP_TRY(nmlp_check_fill(values, program, seed, err));
    NMLP_TRY(nmlp_values_run(values, progress, err));
    NMLP_TRY(nmlp_check_values(report, values, program, pool, err));
    if (!report->ok)
        st = nmlp_fail(err, NMLP_E_NUMERIC,
                       "kernel %s computes wrong values: error %.3g (limit %.3g), sums %.3g (limit %.3g)",
                       program->name, report->max_rel_err, report->limit, report->sum_err, report->sum_limit);
out:
    nmlp_values_destroy(values);
    return st;
}
