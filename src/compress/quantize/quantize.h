/* A checkpoint in fewer bits: every matrix of the layers by the second moments of its inputs (gptq.h), the head and the
 * embedding too; norms and biases stay. Dense and factorised matrices alike. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANTIZE_H
#define NMLP_COMPRESS_QUANTIZE_QUANTIZE_H

#include "base/process_group.h"
#include "base/progress.h"
#include "base/status.h"
#include "compress/quantize/quant_layer.h"
#include "compress/ranks/heldout.h"
#include "engine/engine.h"

typedef struct nmlp_quantize_options {
    nmlp_quant_format body;           /* of all matrices of the layers */
    nmlp_quant_format head;           /* of the output matrix and the embedding; a plain type: as they are */
    const nmlp_quant_format *formats; /* [L, NMLP_QUANT_MATRICES] instead of `body`; NULL: `body` */
    int64_t budget_bytes;             /* above 0: formats of all matrices and the head are chosen to fit into it */
    int64_t calib_tokens;
    int64_t heldout_tokens; /* -1: 8192, or 2048 for large models; 0: nothing is measured */
    int64_t context;        /* tokens in a window */
    bool resume;
    const char *work_dir; /* NULL: "<out_dir>.work"; with ".partial" behind it while in use */
    const nmlp_progress *progress;
    const nmlp_process_group *group; /* processes that do this together, on one file system; the first one writes the
                                      * output. NULL: this one alone. The result is the same */
} nmlp_quantize_options;

nmlp_quantize_options nmlp_quantize_defaults(void);

typedef struct nmlp_quantize_report {
    int64_t params;                    /* of the model */
    int64_t bytes_before, bytes_after; /* `after` in the first process alone */
    int64_t calib_tokens, heldout_tokens;
    nmlp_quant_format head; /* as used */
    int64_t n_layers;
    nmlp_quant_format *formats; /* [L, NMLP_QUANT_MATRICES] as used */
    bool measured;              /* the losses below, on held-out text */
    nmlp_loss before, after;
} nmlp_quantize_report;

void nmlp_quantize_report_fini(nmlp_quantize_report *report);

/* Quantises the engine's model, calibrated on the token ids of a text, into the directory `out_dir`. What stands there
 * stays until the new checkpoint is complete. While working, "<out_dir>.work.partial" holds finished layers; a run that
 * failed or was killed goes on from there with `resume`, to the same bytes. */
nmlp_status nmlp_quantize_run(nmlp_engine *engine, const int32_t *ids, int64_t n_ids, const char *out_dir,
                              const nmlp_quantize_options *options, nmlp_quantize_report *report, nmlp_err *err);

#endif
