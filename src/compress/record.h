/* What a compressed checkpoint tells of its own making: the "neuronmlp" object of its config.json, written and read. */
#ifndef NMLP_COMPRESS_RECORD_H
#define NMLP_COMPRESS_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"
#include "compress/compress.h"
#include "compress/factor/layer_file.h"
#include "model/model.h"

/* Appends the object's text. `finished` [L,E] are all MLPs, E the number of experts or 1. */
void nmlp_compress_record_write(const nmlp_compress_options *options, const nmlp_compress_report *report,
                                const nmlp_config *config, const nmlp_layer_file *finished, nmlp_str *out);

/* Strings are "" and numbers NaN where the checkpoint does not say (another version wrote it). */
typedef struct nmlp_compress_record {
    nmlp_arena arena;    /* behind everything */
    const char *made_by; /* "" after training, when another command had the last word */
    bool trained;        /* recovered since: perplexities of before say nothing any more and are NaN */
    const char *whiten, *weights, *alloc, *recover; /* method */
    const char *calib_text;
    int64_t calib_tokens, heldout_tokens;
    double ratio;       /* of MLP parameters removed */
    double ratio_asked; /* NaN with a time budget */
    int64_t tile;
    double ppl_dense, ppl_factored, ppl, kl; /* held out */
    int64_t n_layers;
    double *error;      /* [L, NMLP_MLP_MATRICES] */
    int64_t curve_step; /* 0: no curves */
    int64_t curve_points;
    double *curve; /* [L, NMLP_MLP_MATRICES, points] relative error at ranks 0, step, ... */
} nmlp_compress_record;

/* `model` was opened from a compressed checkpoint. */
nmlp_status nmlp_compress_record_load(nmlp_compress_record *record, const nmlp_model *model, nmlp_err *err);
void nmlp_compress_record_fini(nmlp_compress_record *record);

#endif
