/* A GGUF file to a model directory: weights, config.json, tokenizer and chat template.
 *
 * Q4_0 becomes Q4 in groups of 32, the same weights to the bit; F32, F16 and BF16 stay what they are; of all other
 * types bf16 is made, and of vectors F32. */
#ifndef NMLP_GGUF_GGUF_IMPORT_H
#define NMLP_GGUF_GGUF_IMPORT_H

#include "base/pool.h"
#include "base/progress.h"
#include "base/status.h"

typedef struct nmlp_gguf_result {
    int64_t params;
    int64_t bytes;
} nmlp_gguf_result;

nmlp_status nmlp_gguf_import(const char *path, const char *dir, const nmlp_progress *progress, nmlp_gguf_result *result,
                             nmlp_err *err);

#endif
