/* A compressed or quantised checkpoint back to a plain dense one that every other tool reads: W = u v, multiplied in
 * f32 and stored in the factors' dtype; what is quantised becomes bf16. */
#ifndef NMLP_MODEL_EXPAND_H
#define NMLP_MODEL_EXPAND_H

#include "base/pool.h"
#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint_write.h"
#include "model/model.h"

nmlp_status nmlp_model_expand(const nmlp_model *model, const char *dir, nmlp_pool *pool, const nmlp_progress *progress,
                              int64_t *bytes, nmlp_err *err);

/* out [N,K] of a plain type = u v, summed in f32. */
nmlp_status nmlp_factors_multiply(void *out, nmlp_dtype dtype, const nmlp_factors *factors, nmlp_pool *pool,
                                  nmlp_err *err);

/* One tensor as every other tool reads it: its type, and its elements in that type. */
nmlp_dtype nmlp_model_plain_dtype(nmlp_dtype dtype);
nmlp_status nmlp_model_put_plain(nmlp_checkpoint_writer *writer, const nmlp_view *view, nmlp_err *err);

/* Copies DIR/name for tokenizer and generation files into another directory; absent files are skipped. */
nmlp_status nmlp_model_copy_side_files(const char *from_dir, const char *to_dir, nmlp_err *err);

#endif
