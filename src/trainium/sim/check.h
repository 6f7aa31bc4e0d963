/* Compares what a kernel computed with a float64 reference.
 *
 * The program must have tensors x[S,H] or xT[H,S]; w[H,O] or u[H,R] and v[R,O]; y[S,O]. Three comparisons:
 *   rows:      up to 16 rows (first, last, around tile edges, random ones), every column, against float64;
 *   row sums:  y t for a random vector t of signs against x (u (v t)): every row of y;
 *   col sums:  s y against ((s x) u) v: every column of y.
 * The sums cost a thousandth of the product and touch every element, the rows give the error itself.
 *
 * Limits. With eps half a unit in the last place of the dtype (bf16 2^-9, fp16 2^-12, fp32 2^-24) and B the most
 * roundings a value passes (one per tile of the contractions, plus 2), independent roundings leave a relative error of
 * about eps sqrt(B): the limit for rows is 4 eps sqrt(B) of the largest reference value plus fp32 accumulation. A sum
 * of n values may be off by 6 standard deviations, 6 sqrt(n) eps sqrt(B) rms(y). A missing or misplaced tile changes
 * results by their own size, some 100 times more. */
#ifndef NMLP_TRAINIUM_SIM_CHECK_H
#define NMLP_TRAINIUM_SIM_CHECK_H

#include "base/pool.h"
#include "trainium/neuron/program.h"
#include "trainium/sim/values.h"

typedef struct nmlp_check_report {
    double max_rel_err; /* rows: largest |got - want| over largest |want| (an MLP's: check_mlp.h) */
    double limit;
    double sum_err, sum_limit; /* worst of row and column sums, in units of rms(y) sqrt(n) */
    int n_rows;
    bool ok;
} nmlp_check_report;

/* Fills inputs with normal numbers and weights with normal numbers over sqrt(rows), rounded to their dtype. */
nmlp_status nmlp_check_fill(nmlp_values *values, const nmlp_program *program, uint64_t seed, nmlp_err *err);
nmlp_status nmlp_check_values(nmlp_check_report *report, nmlp_values *values, const nmlp_program *program,
                              nmlp_pool *pool, nmlp_err *err);

#endif
