/* Reading one safetensors file: 8 bytes of header length, a JSON header, tensor bytes. The file stays mapped; tensors
 * are views into the map. Everything in the header is checked against the file before it is believed. */
#ifndef NMLP_CHECKPOINT_SAFETENSORS_H
#define NMLP_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "tensor/view.h"

typedef struct nmlp_named_tensor {
    const char *name;
    nmlp_view view; /* of integers only data and shape mean something, of FP8 the scales are another tensor */
    int int_bytes; /* 1, 4, 8 where the file holds I8, I32, I64: parts of quantised weights (quant_tensors.h); else 0 */
} nmlp_named_tensor;

/* Of a tensor as it lies in the file. */
size_t nmlp_named_tensor_elem_bytes(const nmlp_named_tensor *tensor);

typedef struct nmlp_safetensors {
    nmlp_file_map map;
    nmlp_arena arena;           /* names and table */
    nmlp_named_tensor *tensors; /* in file order */
    size_t n_tensors;
} nmlp_safetensors;

nmlp_status nmlp_safetensors_open(nmlp_safetensors *file, const char *path, nmlp_err *err);
/* The same for bytes in memory, which must outlive `file`; `origin` stands in messages. */
nmlp_status nmlp_safetensors_parse(nmlp_safetensors *file, const unsigned char *data, size_t bytes, const char *origin,
                                   nmlp_err *err);
void nmlp_safetensors_close(nmlp_safetensors *file);

#endif
