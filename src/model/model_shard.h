/* One process's part of a model under tensor parallelism: attention by heads, MLPs by columns of I, the head by rows of
 * the vocabulary.
 *
 * gate and up: rows of w, or of u with v whole. down: columns of w, or of v with u whole; its output, and attention's,
 * is a part of a sum over the processes. Two sums a layer and the logits, nothing else travels. Thin first factors of
 * gate and up and the second of down are in every part (docs/cluster.md says what that costs), unless they belong to
 * slices, of which each part takes its own. */
#ifndef NMLP_MODEL_MODEL_SHARD_H
#define NMLP_MODEL_MODEL_SHARD_H

#include "model/model.h"

typedef struct nmlp_model_shard {
    nmlp_model model;   /* views into the whole one and into `copies`; not to be closed */
    void **copies;      /* columns of matrices, which do not lie together in the checkpoint */
    size_t *copy_bytes; /* [n_copies] */
    size_t n_copies;
} nmlp_model_shard;

/* Part `rank` of `size`. The whole model must outlive it. Refuses what cannot be parted evenly, naming it. */
nmlp_status nmlp_model_shard_create(nmlp_model_shard **out, const nmlp_model *whole, int rank, int size, nmlp_err *err);
void nmlp_model_shard_destroy(nmlp_model_shard *shard);

/* Where part `rank` of a vocabulary begins; that of `size` is its end. */
int64_t nmlp_model_shard_vocab(int64_t vocab, int rank, int size);

#endif
