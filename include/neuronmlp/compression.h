/* Replace the MLP matrices of a checkpoint by thin factors (docs/compression.md).
 *
 * Threads: any; calls at the same time are safe where their output directories differ, but slow each other.
 * Side effects: OpenBLAS is told to use one thread during the call and given back its former number at the end; as that
 * number belongs to the process, other threads that use OpenBLAS meanwhile get one thread too. OpenBLAS chooses its
 * kernels when the program starts; where it does not know the CPU it takes slow ones. `neuronmlp doctor` says so and
 * names the OPENBLAS_CORETYPE to start the program with. */
#ifndef NEURONMLP_COMPRESSION_H
#define NEURONMLP_COMPRESSION_H

#include "neuronmlp/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nmlp_compression_options {
    size_t struct_bytes;
    double ratio;               /* fraction of MLP parameters to remove, above 0 and below 1; 0.2 */
    int64_t tile;               /* ranks are multiples of it; 0: 32, or 16 up to hidden size 512; 128 on Trainium */
    int uniform;                /* 1: the same ranks everywhere; 0: ranks where held-out text says they matter */
    int refit;                  /* 1: a second pass fits each layer to what the layers below became; 1 */
    const char *calibration;    /* text file; NULL: calib.txt in the model's directory */
    int64_t calibration_tokens; /* 65536 */
    int64_t heldout_tokens;     /* further tokens that candidates are compared on; -1: 8192, or 2048 for large models */
    int64_t context;            /* tokens in a window; 512 */
    int resume;                 /* 1: go on where an interrupted call stopped; 0 */
    int n_threads;              /* 0: one per CPU */
    const char *isa;            /* kernel set; NULL: the fastest for `precision` */
    nmlp_on_progress *on_progress; /* may be NULL; its result cancels */
    void *progress_ctx;
    /* since 0.2 */
    double budget_ms;       /* above 0: milliseconds all MLPs may take for one token, instead of `ratio`, then 0;
                               on a CPU by ranks and bits where the refit is on and nothing is trained */
    const char *target;     /* "cpu" (or NULL), "trn1", "trn2", "trn3" or a machine file: what a rank costs */
    const char *precision;  /* of activations: "f32", "bf16" (faster with AMX); NULL: f32, large models bf16 */
    int64_t train_steps;    /* updates of training after the refit; 0: none */
    const char *train_text; /* text file for it; NULL: the calibration text */
    const char
        *work_dir; /* keeps statistics in "<work_dir>.partial", which `resume` uses for other ratios; NULL: not */
    /* For research; defaults in brackets. */
    int plain_svd;        /* 1: without whitening by the inputs (0) */
    int no_row_weights;   /* 1: without SwiGLU weights on the rows of gate and up (0) */
    int residual_tokens;  /* 1: tokens count by the inverse size of their residual stream (0) */
    int joint;            /* one basis for gate and up: 0 never, 1 auto, 2 always (1) */
    int no_shrink;        /* 1: Grams are not shrunk to their diagonals (0) */
    double cap;           /* most a token may weigh, 0: no limit (0.01) */
    int rounds;           /* of probing around the best ranks; -1: 2, large models 0 (-1) */
    int attention;        /* 1: q, k, v and o take part beside the MLPs; 0 */
    int64_t budget_bytes; /* above 0: bytes of the whole checkpoint, by ranks and bits, instead of `ratio`, then 0 */
    int64_t slices;       /* of the intermediate width, each factorised by itself for tensor parallelism; 1: whole */
} nmlp_compression_options;

/* Any thread; no side effects. */
NMLP_API void nmlp_compression_options_init(nmlp_compression_options *options, size_t struct_bytes);

typedef struct nmlp_compression_result {
    size_t struct_bytes;
    int64_t params_before, params_after;          /* of the model */
    int64_t mlp_params_before, mlp_params_after;  /* of its MLP matrices */
    int64_t bytes_before, bytes_after;            /* of the weights */
    int64_t calibration_tokens, heldout_tokens;   /* used */
    double heldout_ppl_before, heldout_ppl_after; /* perplexity of the held-out tokens; NaN where none were asked for */
    /* since 0.2 */
    double trained_ppl_before, trained_ppl_after; /* of training's own held-out tokens; NaN without training */
    double time_before_ms, time_after_ms;         /* of all MLPs for a token, with budget_ms; else 0 */
    double seconds;
} nmlp_compression_result;

/* Any thread; no side effects. */
NMLP_API void nmlp_compression_result_init(nmlp_compression_result *result, size_t struct_bytes);

/* Compresses the model in `model_dir` into `out_dir`, which is replaced once the new checkpoint is complete. `options`
 * and `result` may be NULL. A call that is interrupted, by its on_progress or from outside, leaves `out_dir` as it was
 * and finished layers in "<out_dir>.work.partial". */
NMLP_API nmlp_status nmlp_compress_model(const char *model_dir, const char *out_dir,
                                         const nmlp_compression_options *options, nmlp_compression_result *result,
                                         nmlp_err *err);

#ifdef __cplusplus
}
#endif

#endif
