/* One checkpoint quantised into another, from directories. */
#ifndef NMLP_SERVICE_QUANTIZATION_H
#define NMLP_SERVICE_QUANTIZATION_H

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

/* "q8", "q6", "q4" with groups of `group`, "q4z" the same with zero points, "fp8", or "bf16" for what stays as it is;
 * false: another word. */
bool nmlp_quant_format_parse(nmlp_quant_format *format, const char *word, int group);
/* "bf16", "fp8", "q8", "q6", "q4 g32", "q4 g64", "q4z g32", "q4z g64" */
const char *nmlp_quant_format_text(const nmlp_quant_format *format);

#endif
