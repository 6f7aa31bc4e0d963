/* Models made of mixes (compress/budget/mix.h): built from one dense model in a work folder, measured on held-out text,
 * and found again by a run that goes on. What a budget in bytes and `optimize` share. */
#ifndef NMLP_SERVICE_MIX_MODELS_H
#define NMLP_SERVICE_MIX_MODELS_H

#include "base/dir_stage.h"
#include "compress/budget/mix.h"
#include "compress/compress.h"
#include "eval/divergence.h"
#include "service/loaded_model.h"
#include "text/tokenizer.h"

enum { NMLP_MIX_PATH_BYTES = 4096, NMLP_MIX_MODELS_MAX = 24 };

typedef struct nmlp_mix_model {
    const char *name; /* "q8", "mixed", ...; borrowed */
    nmlp_mix mix;
    char dir[NMLP_MIX_PATH_BYTES];
    int64_t params, mlp_params, bytes;
    nmlp_divergence heldout; /* against the dense model */
} nmlp_mix_model;

typedef struct nmlp_mix_models {
    const char *model_dir;
    nmlp_load_options load;       /* of the dense model */
    nmlp_compress_options method; /* text, windows, tile: the same for all; with every number chosen. Its group does
                                   * all of this together */
    nmlp_loaded dense;
    nmlp_ids ids; /* of the calibration text, without what is kept for the verification */
    nmlp_calib_windows windows;
    nmlp_dir_stage work;
    bool keep_work; /* its folder was named by the caller: other targets and bounds use it again */
    char layers_dir[NMLP_MIX_PATH_BYTES]; /* factors of every rank */
    uint64_t fingerprint;                 /* of all that models depend on besides their mix */
    nmlp_loss_survey survey;
    nmlp_mix_model list[NMLP_MIX_MODELS_MAX]; /* all that were built, each mix once */
    int n;
} nmlp_mix_models;

typedef struct nmlp_mix_models_request {
    const char *model_dir, *out_dir;
    nmlp_load_options load;       /* precision NULL without isa: f32, or bf16 for large models */
    nmlp_compress_options method; /* tile above 0. Its ratio is where ranks are probed */
    const char *calibration;      /* text file; NULL: calib.txt in the model's directory */
    int64_t verify_tokens;        /* of the calibration text, kept apart from everything; 0: none */
    nmlp_ids *verify;             /* receives them; NULL where there are none */
    nmlp_str *calibration_name;
} nmlp_mix_models_request;

/* Loads the dense model and its text and opens the work folder "<out_dir>.work.partial" (or method.work_dir's). Close
 * whatever the result. */
nmlp_status nmlp_mix_models_open(nmlp_mix_models *models, const nmlp_mix_models_request *request, nmlp_err *err);
/* Measures every matrix alone: `survey` is filled. */
nmlp_status nmlp_mix_models_survey(nmlp_mix_models *models, nmlp_err *err);
/* With NMLP_OK the work folder goes, unless the caller named it; after a failure what is done stays, for `resume`. */
nmlp_status nmlp_mix_models_close(nmlp_mix_models *models, nmlp_status st, nmlp_err *err);

/* Builds and measures a mix, which is copied; *model is one that is there already where it has the same mix. */
nmlp_status nmlp_mix_models_build(nmlp_mix_models *models, const char *name, const nmlp_mix *mix,
                                  const nmlp_mix_model **model, nmlp_err *err);

/* A model in a directory against the dense one on token ids, as it runs: quantised weights with rounded activations. */
nmlp_status nmlp_mix_models_compare(const nmlp_mix_models *models, const char *dir, const int32_t *ids, int64_t n,
                                    nmlp_divergence *result, nmlp_err *err);

/* Bytes of all tensors under a mix, as a cost; ctx is the dense model. Norms and biases are left out: their bytes are
 * nmlp_mix_fixed_bytes. */
nmlp_mix_cost nmlp_mix_cost_bytes(const nmlp_model *model);
int64_t nmlp_mix_fixed_bytes(const nmlp_model *model);

/* "dense", "192", "192*" (shared basis), each with the format behind it: "dense q8". */
void nmlp_mix_matrix_text(char text[32], const nmlp_mix *mix, int64_t layer, int matrix);

#endif
