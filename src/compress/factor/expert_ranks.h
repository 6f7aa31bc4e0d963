/* A layer's experts as one group in the search for ranks: a rank of the layer is the mean of its experts' ranks, who
 * get more where more is lost without it. So a layer with experts has the curves that one MLP has. */
#ifndef NMLP_COMPRESS_FACTOR_EXPERT_RANKS_H
#define NMLP_COMPRESS_FACTOR_EXPERT_RANKS_H

#include "compress/factor/factor_file.h"

/* Fills `nested` of a layer whose `experts` are open: their shapes, and what all of them lose at a mean rank. */
nmlp_status nmlp_expert_ranks_curves(nmlp_factor_file *layer, nmlp_err *err);

/* Ranks of one of the layer's MLPs, from 0, where the layer has `ranks`: multiples of the tile, at least half of the
 * mean, that lose least together. Without experts the layer's own. */
nmlp_status nmlp_expert_ranks_of(const nmlp_factor_file *layer, const nmlp_layer_ranks *ranks, int64_t index,
                                 nmlp_layer_ranks *out, nmlp_err *err);

/* All MLPs of a layer made of factors. */
typedef struct nmlp_layer_mlps {
    nmlp_layer_mlp *mlps; /* [n] */
    nmlp_mlp_desc *descs; /* [n] of the same */
    int64_t n;
} nmlp_layer_mlps;

/* As nmlp_layer_mlp_build, with experts each at its own ranks. */
nmlp_status nmlp_layer_mlps_build(nmlp_layer_mlps *out, const nmlp_factor_file *file, const nmlp_layer *dense,
                                  const nmlp_layer_ranks *ranks, nmlp_pool *pool, nmlp_err *err);
void nmlp_layer_mlps_fini(nmlp_layer_mlps *mlps);
/* The model's own matrices of all MLPs of a layer leave memory. */
void nmlp_layer_release(const nmlp_layer *dense, const nmlp_factor_file *file);

#endif
