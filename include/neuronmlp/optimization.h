/* The fastest form of a checkpoint on a machine, within a loss (docs/optimize.md).
 *
 * Threads and side effects as nmlp_compress_model (compression.h): calls at the same time are safe where their output
 * directories differ, but disturb each other's measurements of time; OpenBLAS uses one thread meanwhile. */
#ifndef NEURONMLP_OPTIMIZATION_H
#define NEURONMLP_OPTIMIZATION_H

#include "neuronmlp/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nmlp_optimize_options {
    size_t struct_bytes;
    const char *target;            /* "cpu" (or NULL), "cuda", "trn1", "trn2", "trn3" or a machine file */
    const char *workload;          /* "chat" (or NULL), "prompt", "batch=N" */
    double max_loss;               /* share by which the perplexity may rise; 0.01 */
    double minutes;                /* above 0: a faster model is also trained for about so long; 0 */
    const char *calibration;       /* text file; NULL: calib.txt in the model's directory */
    int64_t calibration_tokens;    /* 32768 */
    int64_t heldout_tokens;        /* further tokens that choices are made on; -1: 8192, or 2048 for large models */
    int64_t verify_tokens;         /* further tokens for the last check; 8192 */
    int64_t context;               /* tokens in a window; 512 */
    int64_t tile;                  /* ranks are multiples of it; 0: 32, or 16 up to hidden size 512; 128 on Trainium */
    int resume;                    /* 1: go on where an interrupted call stopped; 0 */
    const char *work_dir;          /* keeps the work in "<work_dir>.partial" for other bounds; NULL: not */
    int n_threads;                 /* 0: one per CPU */
    const char *isa;               /* kernel set; NULL: the fastest */
    nmlp_on_progress *on_progress; /* may be NULL; its result cancels */
    void *progress_ctx;
} nmlp_optimize_options;

/* Any thread; no side effects. */
NMLP_API void nmlp_optimize_options_init(nmlp_optimize_options *options, size_t struct_bytes);

typedef struct nmlp_optimize_result {
    size_t struct_bytes;
    char verdict[32];                          /* "leave it dense", "bits only", "ranks only", "ranks and bits" */
    char chosen[48];                           /* name of the form, say "q8" or "mixed" */
    int simulated;                             /* 1: times are of a simulated Trainium */
    double ms_before, ms_after;                /* of a unit of the workload */
    int64_t bytes_before, bytes_after;         /* of the weights */
    double loss, loss_error;                   /* rise of the log-perplexity on held-out text, and its standard error */
    double verified_loss, verified_loss_error; /* the same on text that no choice has seen; NaN where none was left or
                                                  the model stays as it is */
    int stepped_back;                          /* forms that lost too much in the last check */
    double seconds;
} nmlp_optimize_result;

/* Any thread; no side effects. */
NMLP_API void nmlp_optimize_result_init(nmlp_optimize_result *result, size_t struct_bytes);

/* Writes the fastest form of the model in `model_dir` whose loss is within the bound to `out_dir`, which is replaced
 * once it is complete: the model as it is where nothing else is surely faster. `options` and `result` may be NULL. A
 * call that is interrupted, by its on_progress or from outside, leaves `out_dir` as it was and what is done in
 * "<out_dir>.work.partial". */
NMLP_API nmlp_status nmlp_optimize_model(const char *model_dir, const char *out_dir,
                                         const nmlp_optimize_options *options, nmlp_optimize_result *result,
                                         nmlp_err *err);

#ifdef __cplusplus
}
#endif

#endif
