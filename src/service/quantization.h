/* One checkpoint quantised into another, from directories. */
#ifndef NMLP_SERVICE_QUANTIZATION_H
#define NMLP_SERVICE_QUANTIZATION_H

#include "compress/quantize/quant_format.h"
#include "compress/quantize/quantize.h"
#include "service/loaded_model.h"

typedef struct nmlp_quantization_request {
    nmlp_load_options load;       /* precision NULL without isa: f32, or bf16 for large models. Its progress is used
                                     for all of it */
    nmlp_quantize_options method; /* progress is filled in */
    const char *calibration;      /* text file; NULL: calib.txt in the model's directory */
} nmlp_quantization_request;

typedef struct nmlp_quantization_outcome {
    nmlp_quantize_report report;
    nmlp_config config;
    double seconds;
} nmlp_quantization_outcome;

void nmlp_quantization_outcome_fini(nmlp_quantization_outcome *outcome);

/* Fills `outcome` anew; to be released whatever the status. See nmlp_quantize_run on what is left behind. */
nmlp_status nmlp_quantization_run(nmlp_quantization_outcome *outcome, const char *model_dir, const char *out_dir,
                                  const nmlp_quantization_request *request, nmlp_err *err);

#endif
