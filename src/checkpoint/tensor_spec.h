/* A tensor to be written, and the parts in which it stands in a safetensors file.
 *
 * Plain types are one part. Quantised ones (tensor/quant.h) are spelled as compressed-tensors spells them:
 *
 *   Q8  NAME        I8  [N,K]     "int-quantized"
 *       NAME_scale  F32 [N,1]
 *   Q4  NAME_packed I32 [N,K/8]   "pack-quantized"
 *       NAME_scale  F16 [N,K/group]
 *       NAME_zero_point I32 [ceil(N/8),K/group], only where weights have zero points
 *       NAME_shape  I64 [2]       N and K
 *   Q6  NAME_packed I32 [N,ceil(6K/32)] "pack-quantized", codes dense over words
 *       NAME_scale  F32 [N,1]
 *       NAME_shape  I64 [2]       N and K
 *   Q6M, Q5M, Q4M  "neuronmlp-packed": no other program has multipliers, and none must take them for plain codes
 *       NAME_packed I32 [N,ceil(bits K/32)]
 *       NAME_scale  F32 [N,1]
 *       NAME_multiplier I32 [ceil(N/8),K/16]
 *       NAME_shape  I64 [2]       N and K
 *   FP8 NAME        F8_E4M3 [N,K] "float-quantized"
 *       NAME_scale  F32 [N,1] */
#ifndef NMLP_CHECKPOINT_TENSOR_SPEC_H
#define NMLP_CHECKPOINT_TENSOR_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "tensor/view.h"

typedef struct nmlp_tensor_spec {
    const char *name; /* borrowed until the writer is closed */
    nmlp_dtype dtype;
    int group;  /* of zero points, multipliers, and scales of Q4 */
    bool zeros; /* Q4: with zero points */
    bool bare;  /* FP8: codes alone, whose scales are the caller's */
    int n_dims;
    int64_t shape[NMLP_DIMS_MAX];
} nmlp_tensor_spec;

nmlp_tensor_spec nmlp_tensor_spec_of(const char *name, const nmlp_view *view);

/* Codes, scales, zero points, multipliers. */
size_t nmlp_tensor_spec_bytes(const nmlp_tensor_spec *spec);

/* Whether a matrix can be stored in a quantised type: groups must divide its rows, and all must leave what
 * follows in the file aligned. */
bool nmlp_tensor_spec_fits(const nmlp_tensor_spec *spec);
nmlp_status nmlp_tensor_spec_check(const nmlp_tensor_spec *spec, nmlp_err *err);

enum { NMLP_TENSOR_PARTS_MAX = 4, NMLP_TENSOR_PART_NAME_MAX = 320 };

typedef struct nmlp_tensor_part {
    char name[NMLP_TENSOR_PART_NAME_MAX];
    const char *dtype; /* safetensors spelling */
    int n_dims;
    int64_t shape[NMLP_DIMS_MAX];
    size_t bytes;
} nmlp_tensor_part;

/* In the order of the file; returns how many. */
int nmlp_tensor_spec_parts(const nmlp_tensor_spec *spec, nmlp_tensor_part parts[NMLP_TENSOR_PARTS_MAX]);

/* Appends the "quantization_config" of these tensors in compressed-tensors' spelling; nothing where all are plain. */
void nmlp_tensor_specs_quant_config(const nmlp_tensor_spec *specs, size_t n, nmlp_str *out);

#endif
