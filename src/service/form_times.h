/* What every form of a matrix takes for a workload on a target: the cost that `optimize` spends. */
#ifndef NMLP_SERVICE_FORM_TIMES_H
#define NMLP_SERVICE_FORM_TIMES_H

#include "base/pool.h"
#include "compress/budget/mix.h"
#include "compress/ranks/cost.h"
#include "service/workload.h"

enum { NMLP_FORM_SHAPES_MAX = 8, NMLP_FORM_PASSES = 2 };

/* Plain numbers: may be kept in a work file. */
typedef struct nmlp_form_times {
    double counts[NMLP_FORM_PASSES]; /* of forward passes in a unit of the workload: decode, then prefill */
    int64_t n_shapes;
    struct {
        int64_t rows, cols;
        double us[NMLP_FORM_PASSES][NMLP_QUANT_OPTIONS];
    } shapes[NMLP_FORM_SHAPES_MAX]; /* of dense matrices, measured */
    struct {
        double start_us, us_per_weight;
    } line[NMLP_FORM_PASSES][NMLP_QUANT_OPTIONS]; /* through them, for factors */
    double head_us[NMLP_QUANT_OPTIONS];           /* of the output matrix in a unit */
    int64_t simulated;                            /* a Trainium: `mlp` instead */
    nmlp_cost_line mlp[NMLP_FORM_PASSES];
} nmlp_form_times;

typedef struct nmlp_form_timing {
    const nmlp_model *model; /* dense */
    nmlp_workload workload;
    const char *target; /* "cpu", or a Trainium */
    const char *isa;    /* CPU; NULL: the fastest */
    int64_t tile;
    nmlp_pool *pool;
    const nmlp_progress *progress;
} nmlp_form_timing;

/* Times products of the model's shapes on this CPU, or plans the MLP's kernels for a Trainium. */
nmlp_status nmlp_form_times_measure(nmlp_form_times *times, const nmlp_form_timing *timing, nmlp_err *err);
/* From whole models instead, where products cannot be timed alone (CUDA): ms of a unit with all weights in each format.
 * Time is taken to be in proportion to weights. */
void nmlp_form_times_from_models(nmlp_form_times *times, const nmlp_model *model, const nmlp_workload *workload,
                                 const double ms[NMLP_QUANT_OPTIONS]);

/* As a cost in us of a unit; `times` must outlive it. */
nmlp_mix_cost nmlp_form_times_cost(const nmlp_form_times *times);

/* In a work file: a run that goes on must not choose by other times. *known: they were there, with this hash. */
nmlp_status nmlp_form_times_load(nmlp_form_times *times, const char *path, uint64_t hash, bool *known, nmlp_err *err);
nmlp_status nmlp_form_times_save(const nmlp_form_times *times, const char *path, uint64_t hash, nmlp_err *err);

#endif
