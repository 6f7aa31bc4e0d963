/* Store the weights of a checkpoint in 8, 6 or 4 bits (docs/quantisation.md).
 *
 * Threads and side effects: as nmlp_compress_model (compression.h). */
#ifndef NEURONMLP_QUANTIZATION_H
#define NEURONMLP_QUANTIZATION_H

#include "neuronmlp/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nmlp_quantization_options {
    size_t struct_bytes;
    const char *format;         /* "q8", "q6" (8 and 6 bits, a scale per row), "q6m", "q5m", "q4m" (6, 5 and 4 bits,
                                   and a multiplier per 16 weights), "q4" (4 bits, a scale per group), "q4z" (and a
                                   zero point per group) or "fp8" (e4m3, a scale per row); "q8" */
    int group;                  /* of q4 and q4z: weights that share a scale, 32 or 64; 32 */
    const char *head;           /* of embedding and output matrix: a format, or "bf16": as they are; "q8" */
    int64_t budget_bytes;       /* above 0: a format for each matrix, so that all tensors fit into it; 0 */
    const char *calibration;    /* text file; NULL: calib.txt in the model's directory */
    int64_t calibration_tokens; /* 32768 */
    int64_t heldout_tokens;     /* further tokens to measure on; -1: 8192, or 2048 for large models; 0: none */
    int64_t context;            /* tokens in a window; 512 */
    int resume;                 /* 1: go on where an interrupted call stopped; 0 */
    const char *work_dir;       /* finished layers are kept in "<work_dir>.partial" meanwhile; NULL: "<out_dir>.work" */
    int n_threads;              /* 0: one per CPU */
    const char *isa;            /* kernel set; NULL: the fastest for `precision` */
    const char *precision;      /* of activations: "f32", "bf16" (faster with AMX); NULL: f32, large models bf16 */
    nmlp_on_progress *on_progress; /* may be NULL; its result cancels */
    void *progress_ctx;
} nmlp_quantization_options;

/* Any thread; no side effects. */
NMLP_API void nmlp_quantization_options_init(nmlp_quantization_options *options, size_t struct_bytes);

typedef struct nmlp_quantization_result {
    size_t struct_bytes;
    int64_t params; /* of the model */
    int64_t bytes_before, bytes_after;
    double bits_per_weight;
    int64_t calibration_tokens, heldout_tokens; /* used */
    double kl;                                  /* on the held-out tokens, of the new model from the old one */
    double ppl_before, ppl_after;               /* of them; these three are NaN where none were asked for */
    double seconds;
} nmlp_quantization_result;

/* Any thread; no side effects. */
NMLP_API void nmlp_quantization_result_init(nmlp_quantization_result *result, size_t struct_bytes);

/* Quantises the model in `model_dir`, dense or compressed, into `out_dir`, which is replaced once the new checkpoint is
 * complete. `options` and `result` may be NULL. An interrupted call leaves `out_dir` as it was. */
NMLP_API nmlp_status nmlp_quantize_model(const char *model_dir, const char *out_dir,
                                         const nmlp_quantization_options *options, nmlp_quantization_result *result,
                                         nmlp_err *err);

#ifdef __cplusplus
}
#endif

#endif
