/* Writing a model directory tensor by tensor, in shards, without holding more than one tensor in memory.
 *
 * The tensors are announced first (name, dtype, shape), then delivered in the same order. Each shard appears under its
 * final name only when complete; the caller makes the whole directory appear at once with nmlp_dir_stage. */
#ifndef NMLP_CHECKPOINT_CHECKPOINT_WRITE_H
#define NMLP_CHECKPOINT_CHECKPOINT_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/view.h"

typedef struct nmlp_tensor_spec {
    const char *name; /* borrowed until the writer is closed */
    nmlp_dtype dtype;
    int n_dims;
    int64_t shape[NMLP_DIMS_MAX];
} nmlp_tensor_spec;

size_t nmlp_tensor_spec_bytes(const nmlp_tensor_spec *spec);

typedef struct nmlp_checkpoint_writer nmlp_checkpoint_writer;

/* Shards hold at most max_shard_bytes (a larger tensor gets a shard of its own); 0 means the Hugging Face habit of 5
 * GB. */
nmlp_status nmlp_checkpoint_writer_open(nmlp_checkpoint_writer **out, const char *dir, const nmlp_tensor_spec *specs,
                                        size_t n_specs, size_t max_shard_bytes, nmlp_err *err);
/* The next announced tensor, whole: its element bytes in row-major order. */
nmlp_status nmlp_checkpoint_writer_put(nmlp_checkpoint_writer *writer, const void *data, size_t bytes, nmlp_err *err);
/* The next announced tensor in pieces: any number of calls that add up to its size. */
nmlp_status nmlp_checkpoint_writer_put_part(nmlp_checkpoint_writer *writer, const void *data, size_t bytes,
                                            nmlp_err *err);
/* Index of the next tensor to deliver. */
size_t nmlp_checkpoint_writer_next(const nmlp_checkpoint_writer *writer);
/* When shards of an interrupted run are complete in `dir`, skips what they hold; nmlp_checkpoint_writer_next then says
 * where to go on. Only whole shards whose header equals the announced one count. */
nmlp_status nmlp_checkpoint_writer_resume(nmlp_checkpoint_writer *writer, nmlp_err *err);
/* Writes the index after the last tensor, and frees the writer. Fails when tensors are missing. */
nmlp_status nmlp_checkpoint_writer_finish(nmlp_checkpoint_writer *writer, nmlp_err *err);
/* Gives up: removes the shard under construction and frees the writer. NULL is fine. */
void nmlp_checkpoint_writer_abort(nmlp_checkpoint_writer *writer);

#endif
