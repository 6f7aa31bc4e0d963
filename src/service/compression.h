/* One checkpoint compressed into another, from directories: model, calibration text, what a rank costs on the target,
 * and training afterwards. What the command `compress` and the public API share. */
#ifndef NMLP_SERVICE_COMPRESSION_H
#define NMLP_SERVICE_COMPRESSION_H

#include "compress/compress.h"
#include "service/mix_budget.h"
#include "service/loaded_model.h"
#include "train/recover.h"

typedef struct nmlp_compression_request {
    nmlp_load_options load;       /* precision NULL without isa: f32, or bf16 for large models. Its progress is used
                                     for all of it */
    nmlp_compress_options method; /* tile 0: what suits the target. Names, costs and progress are filled in */
    const char *calibration;      /* text file; NULL: calib.txt in the model's directory */
    const char *target;     /* "cpu" (or NULL), a built-in machine or a machine file: sets tile and cost of a rank */
    int64_t budget_bytes;   /* above 0: bytes of the whole checkpoint, by ranks and bits, instead of a ratio */
    int64_t train_steps;    /* updates of training after the refit; 0: none */
    const char *train_text; /* text file; NULL: the calibration text */
} nmlp_compression_request;

typedef struct nmlp_compression_outcome {
    nmlp_compress_report report; /* empty where `mixed` */
    bool mixed;                  /* ranks and bits were chosen together: `budget` has the figures */
    nmlp_mix_budget budget;
    nmlp_recover_report trained; /* steps 0: none */
    nmlp_config config;          /* of the dense model */
    double seconds;
} nmlp_compression_outcome;

void nmlp_compression_outcome_fini(nmlp_compression_outcome *outcome);

/* Fills `outcome` anew; to be released whatever the status. See nmlp_compress_run on what is left behind. */
nmlp_status nmlp_compression_run(nmlp_compression_outcome *outcome, const char *model_dir, const char *out_dir,
                                 const nmlp_compression_request *request, nmlp_err *err);

#endif
