/* A dense model as a GGUF file that llama.cpp reads. Matrices in the type asked for, those whose rows it does not
 * divide in bf16; vectors in F32. Q4 in groups of 32 becomes Q4_0 to the bit. */
#ifndef NMLP_GGUF_GGUF_EXPORT_H
#define NMLP_GGUF_GGUF_EXPORT_H

#include "base/progress.h"
#include "gguf/gguf_import.h"
#include "model/model.h"

/* `type` is "bf16", "q8_0" or "q4_0". Refuses factorised models: expand them first. */
nmlp_status nmlp_gguf_export(const nmlp_model *model, const char *path, const char *type, const nmlp_progress *progress,
                             nmlp_gguf_result *result, nmlp_err *err);

#endif
