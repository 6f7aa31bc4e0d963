/* What the parts of a net share. */
#ifndef NMLP_TRAIN_NET_INTERNAL_H
#define NMLP_TRAIN_NET_INTERNAL_H

#include "train/net.h"

typedef struct nmlp_train_net_matrix {
    nmlp_train_param *w; /* dense, or NULL */
    nmlp_train_param *u, *v;
} nmlp_train_net_matrix;

typedef struct nmlp_train_net_layer {
    nmlp_train_param *attention_norm, *mlp_norm;
    nmlp_train_param *q, *k, *v, *o;
    nmlp_train_param *q_bias, *k_bias, *v_bias, *o_bias; /* NULL where the family has none, as are the norms below */
    nmlp_train_param *q_norm, *k_norm;
    nmlp_train_net_matrix mlp[NMLP_MLP_MATRICES];
    bool shared_basis;
    bool train_attention; /* something in front of the MLP is trained */
    bool train_mlp;
} nmlp_train_net_layer;

/* What is kept of every layer from forward to backward, for S rows. */
typedef struct nmlp_train_net_kept {
    nmlp_train_real *mixed;  /* [S, n_heads*D] what attention read */
    nmlp_train_real *lse;    /* [S, n_heads] its log-sums */
    nmlp_train_real *middle; /* [S,H] residual between attention and MLP */
} nmlp_train_net_kept;

/* Activations of one layer, for S rows. */
typedef struct nmlp_train_net_acts {
    nmlp_train_real *normed;                   /* [S,H] in front of attention */
    nmlp_train_real *q_raw, *k_raw;            /* before q/k norm, where there is one */
    nmlp_train_real *q, *k, *v;                /* rotated */
    nmlp_train_real *mlp_in;                   /* [S,H] normalised */
    nmlp_train_real *inner[NMLP_MLP_MATRICES]; /* [S,r] x v^T */
    nmlp_train_real *gate, *up, *act;          /* [S,I] */
} nmlp_train_net_acts;

struct nmlp_train_net {
    const nmlp_model *model;
    nmlp_train_exec exec;
    nmlp_arena arena;
    nmlp_train_param *params;
    size_t n_params;
    nmlp_train_param *embedding, *final_norm, *lm_head;
    nmlp_train_net_layer *layers;
    int64_t lowest; /* first layer with something to train; below it gradients are not needed */
    int64_t max_s, max_t;
    nmlp_train_real *rope;     /* [T,D] */
    nmlp_train_real **inputs;  /* [L+1] of [S,H] */
    nmlp_train_net_kept *kept; /* [L] */
    nmlp_train_net_acts acts;
    nmlp_train_real *d_rows;   /* [S,H] gradient of the residual stream */
    nmlp_train_real *d_normed; /* [S,H] */
    nmlp_train_real *d_act;    /* [S, max(I, n_heads*D)] */
    nmlp_train_real *d_q, *d_k, *d_v;
    nmlp_train_real *d_inner;          /* [S, largest rank] */
    int64_t loss_rows;                 /* rows whose logits are held at once */
    nmlp_train_real *logits, *teacher; /* [loss_rows,V] */
    double *losses, *nlls;             /* [loss_rows] */
    double *matches;                   /* [S] */
};

nmlp_status nmlp_train_net_bind(nmlp_train_net *net, nmlp_train_set set, nmlp_err *err);
/* out [S,H] = layer l of x; fills net->kept[l]. */
void nmlp_train_net_layer_forward(nmlp_train_net *net, int64_t l, const nmlp_train_real *x, nmlp_train_real *out,
                                  int64_t s, int64_t t);
/* d_rows: gradient of the output in, of the input x out. Computes what forward did not keep once more. */
void nmlp_train_net_layer_backward(nmlp_train_net *net, int64_t l, const nmlp_train_real *x, int64_t s, int64_t t);

#endif
