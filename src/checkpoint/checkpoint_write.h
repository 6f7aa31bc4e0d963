/* Writing the tensors of a model directory in shards, without holding more than one tensor in memory.
 *
 * The tensors are announced first (name, dtype, shape), then asked for in the same order. Each shard appears under its
 * final name only when complete; the caller makes the whole directory appear at once with nmlp_dir_stage. */
#ifndef NMLP_CHECKPOINT_CHECKPOINT_WRITE_H
#define NMLP_CHECKPOINT_CHECKPOINT_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/tensor_spec.h"
#include "tensor/view.h"

/* How the JSON header of every weight file begins that this program wrote. */
#define NMLP_CHECKPOINT_HEADER_FRONT "{\"__metadata__\":{\"format\":\"pt\",\"made_by\":\"neuronmlp\"}"

/* Files beside the weights that are copied from model to model where they are there; NULL at the end. */
extern const char *const nmlp_side_file_names[];

typedef struct nmlp_checkpoint_writer nmlp_checkpoint_writer;

/* The bytes of tensor `i` in row-major order, in any number of calls that add up to its size; of a quantised one all
 * codes, then all scales. Fails with NMLP_E_INTERRUPTED when the progress callback asks to stop. */
nmlp_status nmlp_checkpoint_put(nmlp_checkpoint_writer *writer, const void *data, size_t bytes, nmlp_err *err);
/* All of it at once. */
/* Scales and zero points of a quantised tensor, behind its codes. */
nmlp_status nmlp_checkpoint_put_scales(nmlp_checkpoint_writer *writer, const nmlp_view *view, nmlp_err *err);
nmlp_status nmlp_checkpoint_put_view(nmlp_checkpoint_writer *writer, const nmlp_view *view, nmlp_err *err);

typedef struct nmlp_checkpoint_source {
    const nmlp_tensor_spec *specs; /* [n_specs] in the order of the file */
    size_t n_specs;
    nmlp_status (*put)(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err); /* all of tensor i */
    void *ctx;
    size_t max_shard_bytes;        /* a larger tensor gets a shard of its own; 0: 5 GB, the Hugging Face habit */
    const nmlp_progress *progress; /* may be NULL */
    const char *stage;             /* of the progress: "writing" */
} nmlp_checkpoint_source;

/* Writes all tensors and, with several shards, their index. */
nmlp_status nmlp_checkpoint_write(const char *dir, const nmlp_checkpoint_source *source, nmlp_err *err);

#endif
