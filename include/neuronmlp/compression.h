/* Replace the MLP matrices of a checkpoint by thin factors (docs/compression.md).
 *
 * OpenBLAS chooses its kernels when the program starts; where it does not know the CPU it takes slow ones. `neuronmlp
 * doctor` says so and names the OPENBLAS_CORETYPE to start the program with. */
#ifndef NEURONMLP_COMPRESSION_H
#define NEURONMLP_COMPRESSION_H

#include "neuronmlp/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nmlp_compression_options {
    size_t struct_bytes;
    double ratio;                  /* fraction of MLP parameters to remove, above 0 and below 1; 0.2 */
    int64_t tile;                  /* ranks are multiples of it; 0: 32, or 16 up to hidden size 512 */
    int uniform;                   /* 1: the same ranks everywhere; 0: ranks where held-out text says they matter */
    int refit;                     /* 1: a second pass fits each layer to what the layers below became; 1 */
    const char *calibration;       /* text file; NULL: calib.txt in the model's directory */
    int64_t calibration_tokens;    /* 65536 */
    int64_t heldout_tokens;        /* further tokens that judge; -1: 8192, or 2048 for large models */
    int64_t context;               /* tokens in a window; 512 */
    int resume;                    /* 1: go on where an interrupted call stopped; 0 */
    int n_threads;                 /* 0: one per CPU */
    const char *isa;               /* kernel set; NULL: the fastest exact one */
    nmlp_on_progress *on_progress; /* may be NULL */
    void *progress_ctx;
} nmlp_compression_options;

NMLP_API void nmlp_compression_options_init(nmlp_compression_options *options, size_t struct_bytes);

typedef struct nmlp_compression_result {
    size_t struct_bytes;
    int64_t params_before, params_after;          /* of the model */
    int64_t mlp_params_before, mlp_params_after;  /* of its MLP matrices */
    int64_t bytes_before, bytes_after;            /* of the weights */
    int64_t calibration_tokens, heldout_tokens;   /* used */
    double heldout_ppl_before, heldout_ppl_after; /* perplexity of the held-out tokens; NaN where none were asked for */
} nmlp_compression_result;

NMLP_API void nmlp_compression_result_init(nmlp_compression_result *result, size_t struct_bytes);

/* Compresses the model in `model_dir` into `out_dir`, which is replaced once the new checkpoint is complete. `options`
 * and `result` may be NULL. An interrupted call leaves finished layers in "<out_dir>.work.partial". */
NMLP_API nmlp_status nmlp_compress_model(const char *model_dir, const char *out_dir,
                                         const nmlp_compression_options *options, nmlp_compression_result *result,
                                         nmlp_err *err);

#ifdef __cplusplus
}
#endif

#endif
