/* The nested factors of one layer in a file: written once, then every trial of ranks maps what it needs. Also what an
 * interrupted run finds again. */
#ifndef NMLP_COMPRESS_FACTOR_FACTOR_FILE_H
#define NMLP_COMPRESS_FACTOR_FACTOR_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/work_file.h"
#include "compress/factor/block.h"
#include "kernels/kernels.h"
#include "model/model.h"

typedef struct nmlp_factor_file {
    nmlp_file_map map;
    nmlp_nested nested[NMLP_NESTED_COUNT]; /* rank 0: was not made */
    const double *row_weights;             /* of the rows of all but the last matrix; NULL: ones */
    struct nmlp_factor_file *experts; /* [n_experts] of a layer with experts: then this one has shapes and losses only,
                                       * see expert_ranks.h */
    int64_t n_experts;
    int64_t tile; /* ranks of experts are multiples of it */
} nmlp_factor_file;

/* MLPs behind it. */
static inline int64_t nmlp_factor_file_mlps(const nmlp_factor_file *file) {
    return file->experts ? file->n_experts : 1;
}

/* row_weights [n_weights] may be NULL with n_weights 0. */
nmlp_status nmlp_factor_file_write(const char *path, uint64_t fingerprint, const nmlp_nested *nested,
                                   const double *row_weights, int64_t n_weights, nmlp_err *err);
/* Where *state is not NMLP_WORK_VALID nothing is open. Shapes are those of the block, whose width is cut into slices
 * (1: whole). */
nmlp_status nmlp_factor_file_open(nmlp_factor_file *factor_file, const char *path, uint64_t fingerprint,
                                  const nmlp_block *block, int64_t slices, nmlp_work_state *state, nmlp_err *err);
void nmlp_factor_file_close(nmlp_factor_file *factor_file);
/* Gives the memory of the mapped file back; whoever reads it again brings it in again. */
void nmlp_factor_file_release(const nmlp_factor_file *factor_file);

/* The same for the model's own matrices of one MLP: whoever packs or multiplies them brings all of them into memory. */
void nmlp_mlp_release(const nmlp_factors dense[NMLP_MLP_MATRICES]);

/* An MLP made of factors, with the memory behind it. */
typedef struct nmlp_layer_mlp {
    nmlp_mlp_desc desc;
    void *owned[2 * NMLP_MLP_MATRICES];
} nmlp_layer_mlp;

/* From the factor_file at those ranks; dense matrices are the model's, factors of slices are block diagonal. The
 * factor_file must outlive it. */
nmlp_status nmlp_layer_mlp_build(nmlp_layer_mlp *mlp, const nmlp_factor_file *factor_file,
                                 const nmlp_factors dense[NMLP_MLP_MATRICES], const nmlp_layer_ranks *ranks,
                                 nmlp_pool *pool, nmlp_err *err);
void nmlp_layer_mlp_fini(nmlp_layer_mlp *mlp);

/* A layer with other q, k, v and o, and the memory behind their u. */
typedef struct nmlp_layer_attention {
    nmlp_layer layer;
    void *owned[NMLP_ATTENTION_MATRICES];
} nmlp_layer_attention;

/* The same of an attention, from the factor_file of its block. */
nmlp_status nmlp_layer_attention_build(nmlp_layer_attention *attention, const nmlp_factor_file *factor_file,
                                       const nmlp_layer *dense, const nmlp_layer_ranks *ranks, nmlp_pool *pool,
                                       nmlp_err *err);
void nmlp_layer_attention_fini(nmlp_layer_attention *attention);

#endif
