/* One module of one layer, as the search for ranks and the refit see it: the shapes of its matrices and which of them
 * read the same input. The blocks of a job are the MLPs of all layers, then, where attention takes part, the attentions
 * of all layers. */
#ifndef NMLP_COMPRESS_FACTOR_BLOCK_H
#define NMLP_COMPRESS_FACTOR_BLOCK_H

#include "compress/factor/factorise.h"

typedef struct nmlp_block {
    nmlp_module_kind kind;
    int64_t layer;
    int n_first;                                              /* matrices of the same input; the last one follows */
    int64_t rows[NMLP_NESTED_COUNT], cols[NMLP_NESTED_COUNT]; /* by entry of nested factors; of a slice */
    int64_t count;                                            /* of its kind in the layer: experts, or 1 */
} nmlp_block;

nmlp_block nmlp_block_of(const nmlp_config *config, nmlp_module_kind kind, int64_t layer, int64_t slices);

/* Ranks of one block; 0 stands for dense. With a shared basis all but the last have one rank. */
typedef struct nmlp_layer_ranks {
    int64_t rank[NMLP_MODULE_MATRICES_MAX];
    bool joint;
} nmlp_layer_ranks;

/* The entry of nested factors that matrix i is taken from. */
static inline int nmlp_block_entry(const nmlp_block *block, const nmlp_layer_ranks *ranks, int i) {
    return ranks->joint && i < block->n_first ? block->n_first + 1 : i;
}

bool nmlp_layer_ranks_are_dense(const nmlp_layer_ranks *ranks);
/* Parameters of one module of a block at these ranks, or dense (ranks NULL). */
int64_t nmlp_block_params(const nmlp_block *block, const nmlp_layer_ranks *ranks);

#endif
