/* One process's part of a model under tensor parallelism: attention by heads, MLPs by columns of I, the head by rows of
 * the vocabulary.
 *
 * gate and up: rows of w, or of u. down: columns of w, or of v; its output, and attention's, is a part of a sum over
 * the processes. The thin factors on the side of the hidden state, the v of gate and up and the u of down, are whole in
 * every part (replicated), or rows of them (all), or multiplied out before (dense), or those of the part's own slices.
 * docs/cluster.md says what each costs. */
#ifndef NMLP_MODEL_MODEL_SHARD_H
#define NMLP_MODEL_MODEL_SHARD_H

#include "base/pool.h"
#include "model/cluster_cost.h"
#include "model/model.h"

typedef struct nmlp_model_shard {
    nmlp_model model;   /* views into the whole one and into `copies`; not to be closed */
    void **copies;      /* columns of matrices, which do not lie together in the checkpoint */
    size_t *copy_bytes; /* [n_copies] */
    size_t n_copies;
    nmlp_cluster_split *splits; /* [n_layers] */
} nmlp_model_shard;

/* Whether processes may share the MLP of a layer in this way. */
bool nmlp_model_shard_allows(const nmlp_layer *layer, nmlp_cluster_split split, int size);
/* What needs no choice: slices and dense matrices as they are, factors replicated. */
nmlp_cluster_split nmlp_model_shard_usual(const nmlp_layer *layer);

/* Part `rank` of `size`, MLPs by splits [n_layers], each of which its layer allows; NULL: the usual ones. The whole
 * model must outlive it. Refuses what cannot be parted evenly, naming it. */
nmlp_status nmlp_model_shard_create(nmlp_model_shard **out, const nmlp_model *whole, int rank, int size,
                                    const nmlp_cluster_split *splits, nmlp_pool *pool, nmlp_err *err);
void nmlp_model_shard_destroy(nmlp_model_shard *shard);

/* Where part `rank` of a vocabulary begins; that of `size` is its end. */
int64_t nmlp_model_shard_vocab(int64_t vocab, int rank, int size);
/* The same of n rows of a thin factor: parts differ by one row at most. */
int64_t nmlp_model_shard_first(int64_t n, int rank, int size);

#endif
