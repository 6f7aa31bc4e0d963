/* A model's weights packed for one set of CPU kernels. */
#ifndef NMLP_ENGINE_WEIGHTS_CPU_H
#define NMLP_ENGINE_WEIGHTS_CPU_H

#include "base/mem.h"
#include "engine/engine.h"

/* A matrix of an attention: W, or u behind v. */
typedef struct nmlp_cpu_projection {
    nmlp_linear *in;  /* v [r,K]; NULL: W is dense, or has the v of the first of its attention */
    nmlp_linear *out; /* W, or u [N,r]; with the bias */
    int64_t rank;     /* 0: dense */
} nmlp_cpu_projection;

/* A process's part of a factorised MLP whose thin factors are shared too (split_mlp_cpu.h). */
typedef struct nmlp_cpu_split_mlp {
    nmlp_linear *thin[2]; /* rows of the v of gate and up; NULL: dense, or up has the gate's */
    nmlp_linear *wide[2]; /* rows of their u or w: [I/P,r] or [I/P,H] */
    nmlp_linear *down;    /* columns of down's v or w: [r,I/P] or [H,I/P] */
    nmlp_linear *out;     /* rows of its u; NULL: dense */
    int64_t rank[2];      /* of gate and up; 0: dense */
    int64_t rank_down;
} nmlp_cpu_split_mlp;

typedef struct nmlp_cpu_layer {
    float *attention_norm; /* [H] f32, as all small vectors here; each may be NULL */
    float *attention_norm_post;
    float *mlp_norm;
    float *mlp_norm_post;
    float *q_norm; /* [D] or [q_dim] */
    float *k_norm;
    nmlp_cpu_projection attention[NMLP_ATTENTION_MATRICES];
    int64_t place_in_pages;      /* layers before it whose keys lie in the same pages (nmlp_cpu_cache) */
    nmlp_linear *router;         /* of experts, or NULL */
    nmlp_mlp **experts;          /* [E] or NULL: mlp runs */
    nmlp_mlp **replaced_experts; /* [E] or NULL: the layer's own, as `replaced` */
    nmlp_mlp *mlp;               /* what runs now; NULL with slices and `split` */
    nmlp_cpu_split_mlp *split;   /* or NULL */
    int64_t n_slices;            /* 0: none */
    nmlp_mlp **slices;           /* [n_slices], which add up */
    void **slice_copies;         /* [n_slices] of a dense down's columns, or NULL */
    nmlp_mlp *replaced;          /* the layer's own, while another stands in for it */
    nmlp_cpu_projection replaced_attention[NMLP_ATTENTION_MATRICES]; /* the same of q, k, v, o */
} nmlp_cpu_layer;

typedef struct nmlp_cpu_weights {
    const nmlp_model *model;
    const nmlp_kernels *kernels;
    nmlp_pool *pool;
    const nmlp_process_group *tensor_group; /* NULL: these are the weights of a whole model */
    bool check_finite;                      /* while they are made */
    nmlp_arena arena;                       /* norm weights and the layer table */
    nmlp_cpu_layer *layers;
    float *final_norm; /* [H] */
    nmlp_linear *lm_head;
    int64_t n_resident; /* layers whose matrices stay; the first always does */
    int64_t held;       /* of the others, the one whose matrices are there; -1: none */
} nmlp_cpu_weights;

nmlp_status nmlp_cpu_weights_create(nmlp_cpu_weights **out, const nmlp_model *model, const nmlp_engine_options *options,
                                    nmlp_err *err);
void nmlp_cpu_weights_destroy(nmlp_cpu_weights *weights);
/* Layers of a model that stay in memory within `bytes` (resident_bytes of nmlp_engine_options). */
int64_t nmlp_cpu_weights_resident(const nmlp_model *model, int64_t bytes);
/* See nmlp_engine_hold_layer. */
nmlp_status nmlp_cpu_weights_hold(nmlp_cpu_weights *weights, int64_t layer, nmlp_err *err);
/* See nmlp_engine_set_mlp. */
nmlp_status nmlp_cpu_weights_set_mlp(nmlp_cpu_weights *weights, int64_t layer, const nmlp_mlp_desc *desc,
                                     nmlp_err *err);
/* See nmlp_engine_set_attention. */
nmlp_status nmlp_cpu_weights_set_attention(nmlp_cpu_weights *weights, int64_t layer, const nmlp_layer *attention,
                                           nmlp_err *err);

#endif
