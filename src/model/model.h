/* What a decoder model is: its configuration and, for each layer, where the weights are. An MLP matrix is dense or
 * factorised, and nobody above this layer asks which before using it. Views point into the checkpoint, which the model
 * owns. */
#ifndef NMLP_MODEL_MODEL_H
#define NMLP_MODEL_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/pool.h"
#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "tensor/factors.h"

typedef enum nmlp_mlp_matrix { NMLP_MLP_GATE, NMLP_MLP_UP, NMLP_MLP_DOWN, NMLP_MLP_MATRICES } nmlp_mlp_matrix;

/* "gate_proj", "up_proj", "down_proj" */
const char *nmlp_mlp_matrix_name(nmlp_mlp_matrix matrix);

/* The name of a matrix without ".weight", ".u" or ".v": "model.layers.3.mlp.gate_proj", that of an expert as its family
 * spells it; `matrix` NMLP_MLP_MATRICES names the v that gate and up share. `index` is from 0 of the layer's MLPs. */
enum { NMLP_MATRIX_PATH_MAX = 128 };
void nmlp_mlp_matrix_path(char path[NMLP_MATRIX_PATH_MAX], const nmlp_config *config, int64_t layer, int64_t index,
                          int matrix);

typedef enum nmlp_attention_matrix {
    NMLP_ATTENTION_Q,
    NMLP_ATTENTION_K,
    NMLP_ATTENTION_V,
    NMLP_ATTENTION_O,
    NMLP_ATTENTION_MATRICES
} nmlp_attention_matrix;

/* Parts of a layer whose matrices may have factors. Each begins with matrices of the same input, which may share their
 * v, and ends with one that reads what the others make. */
typedef enum nmlp_module_kind { NMLP_MODULE_MLP, NMLP_MODULE_ATTENTION, NMLP_MODULES } nmlp_module_kind;

enum { NMLP_MODULE_MATRICES_MAX = 4 };

typedef struct nmlp_module {
    const char *name;                            /* as users say it: "mlp", "attn" */
    const char *folder;                          /* in tensors' names */
    int n_first;                                 /* matrices of the same input; the last has this number */
    const char *names[NMLP_MODULE_MATRICES_MAX]; /* [n_first+1] */
    const char *shared;                          /* the v of the first ones */
} nmlp_module;

const nmlp_module *nmlp_module_of(nmlp_module_kind kind);
/* [N,K] of a matrix of one of the layer's modules. */
void nmlp_module_shape(const nmlp_config *config, nmlp_module_kind kind, int64_t layer, int matrix, int64_t *rows,
                       int64_t *cols);
/* As nmlp_mlp_matrix_path, of any module; `matrix` n_first+1 names the v that the first ones share. */
void nmlp_module_matrix_path(char path[NMLP_MATRIX_PATH_MAX], const nmlp_config *config, nmlp_module_kind kind,
                             int64_t layer, int64_t index, int matrix);

/* Gate, up and down of one expert. */
typedef struct nmlp_expert {
    nmlp_factors mlp[NMLP_MLP_MATRICES];
    bool shared_basis; /* gate and up have the same v */
} nmlp_expert;

typedef struct nmlp_layer {
    nmlp_view attention_norm;      /* [H] of what attention sees; norms have data NULL where the family has none */
    nmlp_view attention_norm_post; /* [H] of what it adds */
    nmlp_factors attention[NMLP_ATTENTION_MATRICES]; /* q [n_heads*D,H], k and v [n_kv_heads*D,H], o [H,n_heads*D] */
    bool attention_shares_basis;                     /* q, k and v have the same v */
    nmlp_view q_bias;                                /* biases have data NULL where the family has none */
    nmlp_view k_bias;
    nmlp_view v_bias;
    nmlp_view o_bias;
    nmlp_view q_norm; /* [D], or [n_heads*D] for all heads together */
    nmlp_view k_norm;
    nmlp_view mlp_norm;                  /* [H] of what the MLP sees */
    nmlp_view mlp_norm_post;             /* [H] of what it adds */
    nmlp_factors mlp[NMLP_MLP_MATRICES]; /* gate and up [I,H], down [H,I]; without data where there are experts */
    nmlp_view router;                    /* [E,H] of experts, else without data */
    nmlp_expert *experts;                /* [E] or NULL */
    bool shared_basis;                   /* gate and up of `mlp` have the same v */
    int64_t slices;                      /* factors belong to slices (slices.h); 0: to whole matrices */
    bool thin_split; /* of a process's part: the v of gate and up and the u of down are rows of those
                        of the whole layer (model_shard.h) */
} nmlp_layer;

/* One of the MLPs of a layer, from 0: an expert, or its only one. */
static inline const nmlp_factors *nmlp_layer_mlp_at(const nmlp_layer *layer, int64_t index) {
    return layer->experts ? layer->experts[index].mlp : layer->mlp;
}
static inline bool nmlp_layer_shares_basis(const nmlp_layer *layer, int64_t index) {
    return layer->experts ? layer->experts[index].shared_basis : layer->shared_basis;
}

typedef struct nmlp_model {
    nmlp_checkpoint checkpoint;
    nmlp_config config;   /* the checkpoint's */
    nmlp_view embedding;  /* [V,H] */
    nmlp_view final_norm; /* [H] */
    nmlp_view lm_head;    /* [V,H]; the embedding when tied */
    nmlp_layer *layers;
    nmlp_arena widened; /* tables of experts, and f32 copies of quantised matrices where nmlp_model_widen made them */
} nmlp_model;

/* Binds every tensor and checks its shape; reads no weights. */
nmlp_status nmlp_model_open(nmlp_model *model, const char *dir, nmlp_err *err);
void nmlp_model_close(nmlp_model *model);

/* Every quantised matrix but the embedding (whose rows are widened one by one anyway) becomes an f32 copy in memory:
 * for those who must not round activations. To be called before the model is made ready on a device. */
nmlp_status nmlp_model_widen(nmlp_model *model, nmlp_pool *pool, nmlp_err *err);

/* Refuses NaN and Inf in one tensor of the model, naming it and the index; a view without data is fine. Its pages stay
 * in memory, for whoever packs it next. */
nmlp_status nmlp_model_check_tensor(const nmlp_model *model, const nmlp_view *view, nmlp_pool *pool, nmlp_err *err);
/* The same for all weights, each read once and given back. */
nmlp_status nmlp_model_check_finite(const nmlp_model *model, nmlp_pool *pool, const nmlp_progress *progress,
                                    nmlp_err *err);

typedef struct nmlp_model_size {
    int64_t params;           /* of the whole model */
    int64_t mlp_params;       /* of its MLP matrices as stored */
    int64_t mlp_params_dense; /* the same when dense */
    int64_t attention_params; /* of q, k, v and o as stored */
    int64_t attention_params_dense;
    int64_t bytes;
    int64_t n_dense;             /* MLP matrices stored dense */
    int64_t n_lowrank;           /* stored as factors */
    int64_t n_attention_lowrank; /* matrices of attentions stored as factors */
} nmlp_model_size;

nmlp_model_size nmlp_model_measure(const nmlp_model *model);
/* Of a tensor as stored, with its scales. */
int64_t nmlp_model_view_bytes(const nmlp_view *view);

#endif
