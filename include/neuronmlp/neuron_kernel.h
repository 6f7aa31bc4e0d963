/* Kernels for AWS Trainium: plan one for a shape, simulate it, check its values, print it as NKI source. Nothing here
 * needs a Trainium; times are simulated (docs/simulator.md).
 *
 * Shapes: S rows (tokens), H inputs, R rank, O outputs.
 * Threads: a kernel belongs to one thread at a time; different ones may be used at once. _init functions may be called
 * from any thread and have no side effects.
 * Side effects: a plan_cache is read and written by nmlp_neuron_kernel_create (under a temporary name, then renamed), a
 * machine file is read; nmlp_neuron_kernel_check starts threads and ends them before it returns. Nothing else. */
#ifndef NEURONMLP_NEURON_KERNEL_H
#define NEURONMLP_NEURON_KERNEL_H

#include "neuronmlp/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nmlp_neuron_problem {
    size_t struct_bytes;
    const char *target;     /* "trn1", "trn2", "trn3" or the path of a machine file; "trn1" */
    const char *kernel;     /* "xw" (x W), "xuv" (x U V) and "mlp" (gated MLP) are planned; `neuronmlp simulate` takes
                               further names; "xuv" */
    int64_t rows;           /* S */
    int64_t inputs;         /* H */
    int64_t rank;           /* R; 0 for xw and for a dense mlp */
    int64_t outputs;        /* O; of an mlp its intermediate width */
    const char *dtype;      /* "bf16", "fp16" or "fp32"; "bf16" */
    const char *tiling;     /* "key=value,…" to fix parts of the tiling; "" */
    const char *plan_cache; /* file that remembers plans; NULL: none */
} nmlp_neuron_problem;

NMLP_API void nmlp_neuron_problem_init(nmlp_neuron_problem *problem, size_t struct_bytes);

typedef struct nmlp_neuron_kernel nmlp_neuron_kernel;

/* Searches the tilings of a planned kernel, or builds the named one. */
NMLP_API nmlp_status nmlp_neuron_kernel_create(nmlp_neuron_kernel **out, const nmlp_neuron_problem *problem,
                                               nmlp_err *err);
NMLP_API void nmlp_neuron_kernel_destroy(nmlp_neuron_kernel *kernel); /* NULL is fine */

/* The tiling the planner chose, as `tiling` above takes it; "" for a kernel that is not planned. Lives as long as the
 * kernel. */
NMLP_API const char *nmlp_neuron_kernel_tiling(const nmlp_neuron_kernel *kernel);

typedef struct nmlp_neuron_figures {
    size_t struct_bytes;
    double latency_us; /* simulated */
    double limit_us;   /* what no tiling can beat on this machine; 0 for a kernel that is not planned */
    double hbm_read_bytes, hbm_write_bytes;
    double flops;
    double tensor_utilisation;           /* of the nominal peak, 0 to 1 */
    double tensor_utilisation_sustained; /* of the rate the machine sustains */
    int64_t instructions;                /* executed */
    int64_t sbuf_bytes;                  /* high water per partition */
} nmlp_neuron_figures;

NMLP_API void nmlp_neuron_figures_init(nmlp_neuron_figures *figures, size_t struct_bytes);
NMLP_API nmlp_status nmlp_neuron_kernel_simulate(nmlp_neuron_kernel *kernel, nmlp_neuron_figures *figures,
                                                 nmlp_err *err);

/* Runs the kernel on random operands and compares with float64. `max_rel_err` (may be NULL) receives the largest error
 * over the largest value. Fails with NMLP_E_NUMERIC where the kernel computes something else than it should. */
NMLP_API nmlp_status nmlp_neuron_kernel_check(nmlp_neuron_kernel *kernel, uint64_t seed, int n_threads,
                                              double *max_rel_err, nmlp_err *err);

/* The kernel as Python source. `dialect` is "nki", "nki-legacy" or NULL: what the target's compiler takes. `source` is
 * NUL-ended and lives until the next emit or the end of the kernel. */
NMLP_API nmlp_status nmlp_neuron_kernel_emit(nmlp_neuron_kernel *kernel, const char *dialect, const char **source,
                                             nmlp_err *err);

#ifdef __cplusplus
}
#endif

#endif
