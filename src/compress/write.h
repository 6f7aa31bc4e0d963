/* The compressed checkpoint: the source's tensors in their order, factorised matrices as u and v. */
#ifndef NMLP_COMPRESS_WRITE_H
#define NMLP_COMPRESS_WRITE_H

#include "base/dir_stage.h"
#include "base/progress.h"
#include "base/status.h"
#include "compress/factor/layer_file.h"
#include "model/model.h"

typedef struct nmlp_compressed_size {
    int64_t params;
    int64_t mlp_params;
    int64_t bytes;
} nmlp_compressed_size;

/* `finished` [L,E] are all MLPs, E the number of experts or 1, `attention` [L] the attentions. Writes weights,
 * config.json (with the text of the "neuronmlp" object), README.md (`card`) and side files into the directory of
 * `stage`, which then appears at once; the stage is closed by success. Factors of several slices, block diagonal in the
 * layers' files, are written one below the other (model/slices.h). */
nmlp_status nmlp_compressed_write(const nmlp_model *model, const nmlp_layer_file *finished,
                                  const nmlp_layer_file *attention, int64_t slices, nmlp_dir_stage *stage,
                                  const char *neuronmlp, const char *card, const nmlp_progress *progress,
                                  nmlp_compressed_size *size, nmlp_err *err);

#endif
