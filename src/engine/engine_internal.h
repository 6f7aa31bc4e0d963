/* What engine.c and session.c share. */
#ifndef NMLP_ENGINE_ENGINE_INTERNAL_H
#define NMLP_ENGINE_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/rope_table.h"

typedef struct nmlp_engine_layer {
    float *attention_norm; /* [H] f32, as all small vectors here */
    float *mlp_norm;       /* [H] */
    float *q_norm;         /* [D] or NULL */
    float *k_norm;         /* [D] or NULL */
    nmlp_linear *q;
    nmlp_linear *k;
    nmlp_linear *v;
    nmlp_linear *o;
    nmlp_mlp *mlp;      /* what runs now */
    nmlp_mlp *replaced; /* the layer's own, while another stands in for it */
} nmlp_engine_layer;

struct nmlp_engine {
    const nmlp_model *model;
    const nmlp_kernels *kernels;
    nmlp_pool *pool;
    bool check_finite; /* while it is made */
    nmlp_arena arena;  /* norm weights and the layer table */
    nmlp_engine_layer *layers;
    float *final_norm; /* [H] */
    nmlp_linear *lm_head;
    const struct nmlp_cuda_engine *gpu; /* where the model runs instead; NULL: here */
};

#endif
