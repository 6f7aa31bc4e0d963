/* Fits the free numbers of a machine to measured times of kernels.
 *
 * A number is changed by a factor; residuals are logarithms of measured over simulated time, weighed by Tukey's
 * function so that a few wrong measurements do not count; steps are Gauss and Newton's with the derivatives taken by
 * simulating again. What the measurements cannot tell apart or do not depend on is left as it was: before the fit a
 * number is put aside when a noise of 2 % would leave it uncertain by more than NMLP_FIT_UNCERTAIN_MAX, after it when
 * the noise found does. A stated uncertainty is the standard error by the slopes, or how far the number may go until
 * the misfit grows by as much as one standard error would make it, where that is more. */
#ifndef NMLP_TRAINIUM_FIT_FIT_H
#define NMLP_TRAINIUM_FIT_FIT_H

#include "base/pool.h"
#include "trainium/neuron/machine.h"
#include "trainium/neuron/program.h"

enum { NMLP_FIT_KEYS_MAX = 8 };
#define NMLP_FIT_UNCERTAIN_MAX 0.10 /* standard error over value */

typedef struct nmlp_fit_measurement {
    const nmlp_program *program;
    double measured_us;
    bool with_launch; /* the time includes the start of the kernel */
} nmlp_fit_measurement;

typedef struct nmlp_fit_key {
    nmlp_machine_key key;
    double before, after;
    double uncertainty; /* standard error over value; where it was not fitted, what a noise of 2 % would leave */
    bool fitted;
} nmlp_fit_key;

/* Of |measured / simulated - 1|. */
typedef struct nmlp_fit_error {
    double median, largest;
} nmlp_fit_error;

typedef struct nmlp_fit_result {
    nmlp_fit_key keys[NMLP_FIT_KEYS_MAX];
    int n_keys;
    nmlp_fit_error before, after;
    int64_t n_outliers;   /* measurements that do not count */
    double *simulated_us; /* [n] with the fitted machine; caller frees with nmlp_mem_free */
} nmlp_fit_result;

/* The numbers that are tried where nobody names others. */
extern const nmlp_machine_key nmlp_fit_default_keys[];
extern const int nmlp_fit_n_default_keys;

/* Changes `machine` (numbers and origins of the fitted keys, with `source` as their source). With `strict`, a key that
 * the measurements cannot determine is an error that names it. Fails where none can be determined. */
nmlp_status nmlp_fit_machine(nmlp_fit_result *result, nmlp_machine *machine, const nmlp_fit_measurement *list,
                             int64_t n, const nmlp_machine_key *keys, int n_keys, bool strict, const char *source,
                             nmlp_pool *pool, nmlp_err *err);

#endif
