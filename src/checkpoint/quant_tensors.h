/* Reading quantised weights: the parts of tensor_spec.h become one tensor with a view of a quantised type, and the
 * "quantization_config" of config.json is checked for what the parts do not say. */
#ifndef NMLP_CHECKPOINT_QUANT_TENSORS_H
#define NMLP_CHECKPOINT_QUANT_TENSORS_H

#include "base/hashmap.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/status.h"
#include "checkpoint/safetensors.h"

/* Refuses methods, types and schemes other than int8, int6, int4 and float8 weights of compressed-tensors, and our own
 * with multipliers. *found says whether there is such an object. */
nmlp_status nmlp_quant_config_check(const nmlp_json_doc *doc, bool *found, nmlp_err *err);

/* The tensors of a checkpoint as they lie in its files. */
typedef struct nmlp_raw_tensors {
    const char *dir; /* for messages */
    const nmlp_named_tensor *tensors;
    const nmlp_hashmap *by_name; /* name -> index into tensors */
    nmlp_arena *arena;           /* for names and scales in another type */
} nmlp_raw_tensors;

/* Raw tensor `i` as whoever uses the checkpoint sees it: itself, or with its scales where it holds codes. *part is true
 * where it belongs to another one. */
nmlp_status nmlp_quant_tensor_join(const nmlp_raw_tensors *raw, size_t i, nmlp_named_tensor *out, bool *part,
                                   nmlp_err *err);

#endif
