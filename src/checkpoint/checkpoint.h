/* A Hugging Face model directory: config.json and one or more safetensors files, found by tensor name.
 * Weights stay in the mapped files; nothing is read before it is used. Immutable after opening. */
#ifndef NMLP_CHECKPOINT_CHECKPOINT_H
#define NMLP_CHECKPOINT_CHECKPOINT_H

#include <stddef.h>

#include "base/hashmap.h"
#include "base/mem.h"
#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"

typedef struct nmlp_checkpoint {
    nmlp_config config;
    char *dir;
    nmlp_safetensors *files;
    size_t n_files;
    nmlp_named_tensor *tensors; /* of all files; a quantised weight is one tensor */
    size_t n_tensors;
    nmlp_hashmap by_name; /* name -> index into tensors */
    nmlp_arena arena;     /* names and scales that are not in the files as they are needed */
} nmlp_checkpoint;

nmlp_status nmlp_checkpoint_open(nmlp_checkpoint *checkpoint, const char *dir, nmlp_err *err);
void nmlp_checkpoint_close(nmlp_checkpoint *checkpoint);

/* NULL when there is no such tensor. */
const nmlp_named_tensor *nmlp_checkpoint_find(const nmlp_checkpoint *checkpoint, const char *name);

#endif
