#include "compress/quantize/quant_format.h"

#include <string.h>

#include "checkpoint/tensor_spec.h"
#include "tensor/quant.h"

bool nmlp_quant_format_fits(const nmlp_quant_format *format, int64_t rows, int64_t cols) {
    nmlp_tensor_spec spec = {.name = "", .dtype = format->dtype, .group = format->group, .n_dims = 2};
    spec.shape[0] = rows;
    spec.shape[1] = cols;
    return nmlp_tensor_spec_fits(&spec);
}

bool nmlp_quant_format_parse(nmlp_quant_format *format, const char *word, int group) {
    static const struct {
        const char *word;
        nmlp_dtype dtype;
        bool zeros;
    } words[] = {{"q8", NMLP_DTYPE_Q8, false},   {"q6", NMLP_DTYPE_Q6, false},   {"q4", NMLP_DTYPE_Q4, false},
                 {"q4z", NMLP_DTYPE_Q4, true},   {"fp8", NMLP_DTYPE_FP8, false}, {"bf16", NMLP_DTYPE_BF16, false},
                 {"q6m", NMLP_DTYPE_Q6M, false}, {"q5m", NMLP_DTYPE_Q5M, false}, {"q4m", NMLP_DTYPE_Q4M, false}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i].word) != 0) continue;
        *format = (nmlp_quant_format){.dtype = words[i].dtype, .zeros = words[i].zeros};
        if (format->dtype == NMLP_DTYPE_Q4) format->group = group;
        if (nmlp_quant_has_multipliers(format->dtype)) format->group = NMLP_QUANT_MULTIPLIER_GROUP;
        return true;
    }
    return false;
}

const char *nmlp_quant_format_text(const nmlp_quant_format *f) {
    if (f->dtype == NMLP_DTYPE_Q8) return "q8";
    if (f->dtype == NMLP_DTYPE_Q6) return "q6";
    if (f->dtype == NMLP_DTYPE_Q6M) return "q6m";
    if (f->dtype == NMLP_DTYPE_Q5M) return "q5m";
    if (f->dtype == NMLP_DTYPE_Q4M) return "q4m";
    if (f->dtype == NMLP_DTYPE_FP8) return "fp8";
    if (f->dtype != NMLP_DTYPE_Q4) return "bf16";
    if (f->zeros) return f->group == 32 ? "q4z g32" : "q4z g64";
    return f->group == 32 ? "q4 g32" : "q4 g64";
}
