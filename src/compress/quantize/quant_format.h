/* How a matrix is stored in fewer bits, and the words users have for it. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_FORMAT_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/dtype.h"

/* A plain type means: as the model has it. */
typedef struct nmlp_quant_format {
    nmlp_dtype dtype;
    int group;  /* of Q4 and of types with multipliers; 0 of others */
    bool zeros; /* Q4: every group has a zero point */
} nmlp_quant_format;

/* Whether a matrix [rows,cols] can be stored so: groups must divide its rows. */
bool nmlp_quant_format_fits(const nmlp_quant_format *format, int64_t rows, int64_t cols);

/* "q8", "q6", "q4" with groups of `group`, "q4z" the same with zero points, "q6m", "q5m", "q4m", "fp8", or "bf16" for
 * what stays as it is; false: another word. */
bool nmlp_quant_format_parse(nmlp_quant_format *format, const char *word, int group);
/* "bf16", "fp8", "q8", "q6", "q4 g32", "q4 g64", "q4z g32", "q4z g64", "q6m", "q5m", "q4m" */
const char *nmlp_quant_format_text(const nmlp_quant_format *format);

#endif
