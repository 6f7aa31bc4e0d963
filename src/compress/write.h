/* The compressed checkpoint: the source's tensors in their order, factorised matrices as u and v. */
#ifndef NMLP_COMPRESS_WRITE_H
#define NMLP_COMPRESS_WRITE_H

#include "base/progress.h"
#include "base/status.h"
#include "compress/factor/layer_file.h"
#include "model/model.h"

typedef struct nmlp_compressed_size {
    int64_t params;
    int64_t mlp_params;
    int64_t bytes;
} nmlp_compressed_size;

/* Writes weights, config.json (with the text of the "neuronmlp" object) and side files into a new directory that
 * appears at once. */
nmlp_status nmlp_compressed_write(const nmlp_model *model, const nmlp_layer_file *layers, const char *dir,
                                  const char *neuronmlp, const nmlp_progress *progress, nmlp_compressed_size *size,
                                  nmlp_err *err);

#endif
