/* One decoder layer forward and back. Included by net_<type>.c. */
#ifndef NMLP_TRAIN_LAYER_BODY_H
#define NMLP_TRAIN_LAYER_BODY_H

#include <string.h>

#include "train/net_internal.h"

/* ---- forward ---- */

static void project(nmlp_train_net *net, nmlp_train_real *y, const nmlp_train_real *x, const nmlp_train_param *w,
                    const nmlp_train_param *bias, int64_t s) {
    nmlp_train_linear_forward(&net->exec, y, x, w->data, s, w->rows, w->cols);
    if (bias) nmlp_train_bias_forward(&net->exec, y, bias->data, s, w->rows);
}

/* `inner` [S,r] is filled unless it is there already. */
static void project_matrix(nmlp_train_net *net, nmlp_train_real *y, const nmlp_train_real *x,
                           const nmlp_train_net_matrix *m, nmlp_train_real *inner, bool inner_known, int64_t s) {
    if (m->w) {
        project(net, y, x, m->w, NULL, s);
        return;
    }
    if (!inner_known) project(net, inner, x, m->v, NULL, s);
    project(net, y, inner, m->u, NULL, s);
}

/* q or k: projected, normalised where the family does, rotated. */
static void project_heads(nmlp_train_net *net, nmlp_train_real *y, nmlp_train_real *raw, const nmlp_train_param *w,
                          const nmlp_train_param *bias, const nmlp_train_param *norm, const nmlp_train_real *table,
                          int64_t s, int64_t t) {
    const nmlp_config *c = &net->model->config;
    int64_t heads = w->rows / c->head_dim;
    project(net, norm ? raw : y, net->acts.normed, w, bias, s);
    if (norm) nmlp_train_norm_forward(&net->exec, y, raw, norm->data, c->rms_eps, s * heads, c->head_dim);
    nmlp_train_rope_rotate(&net->exec, y, table, s, t, heads, c->head_dim, 1);
}

static nmlp_train_heads heads_of(const nmlp_train_net *net, int64_t l, int64_t s, int64_t t) {
    const nmlp_config *c = &net->model->config;
    const nmlp_train_net_acts *a = &net->acts;
    const nmlp_train_net_kept *kept = &net->kept[l];
    return (nmlp_train_heads){.out = kept->mixed,
                              .q = a->q,
                              .k = a->k,
                              .v = a->v,
                              .lse = kept->lse,
                              .s = s,
                              .t = t,
                              .n_heads = c->n_heads,
                              .n_kv_heads = c->n_kv_heads,
                              .d = c->head_dim};
}

/* Everything in front of attention's scores. Sequences of t tokens begin at position `first`. */
static void project_qkv(nmlp_train_net *net, const nmlp_train_net_layer *layer, const nmlp_train_real *x, int64_t s,
                        int64_t t, int64_t first) {
    const nmlp_config *c = &net->model->config;
    nmlp_train_net_acts *a = &net->acts;
    nmlp_train_norm_forward(&net->exec, a->normed, x, layer->attention_norm->data, c->rms_eps, s, c->hidden);
    const nmlp_train_real *table = net->rope + first * c->head_dim;
    project_heads(net, a->q, a->q_raw, layer->q, layer->q_bias, layer->q_norm, table, s, t);
    project_heads(net, a->k, a->k_raw, layer->k, layer->k_bias, layer->k_norm, table, s, t);
    project(net, a->v, a->normed, layer->v, layer->v_bias, s);
}

/* The MLP from the kept residual to its activation. */
static void activate(nmlp_train_net *net, int64_t l, int64_t s) {
    const nmlp_config *c = &net->model->config;
    const nmlp_train_net_layer *layer = &net->layers[l];
    nmlp_train_net_acts *a = &net->acts;
    nmlp_train_norm_forward(&net->exec, a->mlp_in, net->kept[l].middle, layer->mlp_norm->data, c->rms_eps, s,
                            c->hidden);
    project_matrix(net, a->gate, a->mlp_in, &layer->mlp[NMLP_MLP_GATE], a->inner[NMLP_MLP_GATE], false, s);
    nmlp_train_real *up_inner = a->inner[layer->shared_basis ? NMLP_MLP_GATE : NMLP_MLP_UP];
    project_matrix(net, a->up, a->mlp_in, &layer->mlp[NMLP_MLP_UP], up_inner, layer->shared_basis, s);
    nmlp_train_swiglu_forward(&net->exec, a->act, a->gate, a->up, s * c->intermediate);
}

/* out [S,H] = the layer behind attention, whose result is kept[l].mixed. */
static void finish_layer(nmlp_train_net *net, int64_t l, const nmlp_train_real *x, nmlp_train_real *out, int64_t s) {
    const nmlp_config *c = &net->model->config;
    const nmlp_train_net_layer *layer = &net->layers[l];
    const nmlp_train_net_kept *kept = &net->kept[l];
    nmlp_train_net_acts *a = &net->acts;
    project(net, kept->middle, kept->mixed, layer->o, layer->o_bias, s);
    nmlp_train_rows_add(&net->exec, kept->middle, x, s * c->hidden);
    activate(net, l, s);
    project_matrix(net, out, a->act, &layer->mlp[NMLP_MLP_DOWN], a->inner[NMLP_MLP_DOWN], false, s);
    nmlp_train_rows_add(&net->exec, out, kept->middle, s * c->hidden);
}

void nmlp_train_net_layer_forward(nmlp_train_net *net, int64_t l, const nmlp_train_real *x, nmlp_train_real *out,
                                  int64_t s, int64_t t) {
    project_qkv(net, &net->layers[l], x, s, t, 0);
    nmlp_train_heads heads = heads_of(net, l, s, t);
    nmlp_train_attention_forward(&net->exec, &heads);
    finish_layer(net, l, x, out, s);
}

/* The same for the next token of each sequence. */
static void layer_next(nmlp_train_net *net, nmlp_train_growth *g, int64_t l, const nmlp_train_real *x,
                       nmlp_train_real *out) {
    const nmlp_config *c = &net->model->config;
    const nmlp_train_net_acts *a = &net->acts;
    int64_t kv_dim = c->n_kv_heads * c->head_dim;
    project_qkv(net, &net->layers[l], x, g->b, 1, g->length);
    for (int64_t i = 0; i < g->b; i++) {
        int64_t at = (i * g->room + g->length) * kv_dim;
        memcpy(g->k[l] + at, a->k + i * kv_dim, (size_t)kv_dim * sizeof *a->k);
        memcpy(g->v[l] + at, a->v + i * kv_dim, (size_t)kv_dim * sizeof *a->v);
    }
    nmlp_train_attention_next(&net->exec, &(nmlp_train_newest){.out = net->kept[l].mixed,
                                                               .q = a->q,
                                                               .k = g->k[l],
                                                               .v = g->v[l],
                                                               .b = g->b,
                                                               .n = g->length + 1,
                                                               .room = g->room,
                                                               .n_heads = c->n_heads,
                                                               .n_kv_heads = c->n_kv_heads,
                                                               .d = c->head_dim});
    finish_layer(net, l, x, out, g->b);
}

/* ---- backward ---- */

/* dx [S,K] = or += dy w; dw += dy^T x and db += dy where they are trained. */
static void project_back(nmlp_train_net *net, nmlp_train_real *dx, const nmlp_train_real *dy, const nmlp_train_real *x,
                         const nmlp_train_param *w, const nmlp_train_param *bias, int64_t s, bool accumulate) {
    if (w->grad) nmlp_train_linear_backward_weight(&net->exec, w->grad, dy, x, s, w->rows, w->cols);
    if (bias && bias->grad) nmlp_train_bias_backward(&net->exec, bias->grad, dy, s, w->rows);
    nmlp_train_linear_backward_input(&net->exec, dx, dy, w->data, s, w->rows, w->cols, accumulate);
}

static void project_matrix_back(nmlp_train_net *net, nmlp_train_real *dx, const nmlp_train_real *dy,
                                const nmlp_train_real *x, const nmlp_train_net_matrix *m, const nmlp_train_real *inner,
                                int64_t s, bool accumulate) {
    if (m->w) {
        project_back(net, dx, dy, x, m->w, NULL, s, accumulate);
        return;
    }
    project_back(net, net->d_inner, dy, inner, m->u, NULL, s, false);
    project_back(net, dx, net->d_inner, x, m->v, NULL, s, accumulate);
}

static void gate_up_back(nmlp_train_net *net, const nmlp_train_net_layer *layer, int64_t s) {
    const nmlp_train_net_acts *a = &net->acts;
    const nmlp_train_net_matrix *gate = &layer->mlp[NMLP_MLP_GATE];
    const nmlp_train_net_matrix *up = &layer->mlp[NMLP_MLP_UP];
    const nmlp_train_real *d_gate = a->gate; /* the activation's backward put them there */
    const nmlp_train_real *d_up = a->up;
    if (!layer->shared_basis) {
        project_matrix_back(net, net->d_normed, d_gate, a->mlp_in, gate, a->inner[NMLP_MLP_GATE], s, false);
        project_matrix_back(net, net->d_normed, d_up, a->mlp_in, up, a->inner[NMLP_MLP_UP], s, true);
        return;
    }
    project_back(net, net->d_inner, d_gate, a->inner[NMLP_MLP_GATE], gate->u, NULL, s, false);
    project_back(net, net->d_inner, d_up, a->inner[NMLP_MLP_GATE], up->u, NULL, s, true);
    project_back(net, net->d_normed, net->d_inner, a->mlp_in, gate->v, NULL, s, false);
}

static void norm_back(nmlp_train_net *net, nmlp_train_real *dx, const nmlp_train_real *dy, const nmlp_train_real *x,
                      const nmlp_train_param *norm, int64_t rows, bool accumulate) {
    double eps = net->model->config.rms_eps;
    if (norm->grad) nmlp_train_norm_backward_weight(&net->exec, norm->grad, dy, x, eps, rows, norm->rows);
    nmlp_train_norm_backward(&net->exec, dx, dy, x, norm->data, eps, rows, norm->rows, accumulate);
}

static void mlp_backward(nmlp_train_net *net, int64_t l, int64_t s) {
    const nmlp_config *c = &net->model->config;
    const nmlp_train_net_layer *layer = &net->layers[l];
    const nmlp_train_net_acts *a = &net->acts;
    const nmlp_train_net_matrix *down = &layer->mlp[NMLP_MLP_DOWN];
    activate(net, l, s);
    if (down->v) project(net, a->inner[NMLP_MLP_DOWN], a->act, down->v, NULL, s);
    project_matrix_back(net, net->d_act, net->d_rows, a->act, down, a->inner[NMLP_MLP_DOWN], s, false);
    nmlp_train_swiglu_backward(&net->exec, a->gate, a->up, net->d_act, s * c->intermediate);
    gate_up_back(net, layer, s);
    norm_back(net, net->d_rows, net->d_normed, net->kept[l].middle, layer->mlp_norm, s, true);
}

/* Gradient of q or k back to before rotation and norm, in place. */
static void heads_back(nmlp_train_net *net, nmlp_train_real *dy, const nmlp_train_real *raw, const nmlp_train_param *w,
                       const nmlp_train_param *norm, int64_t s, int64_t t) {
    int64_t d = net->model->config.head_dim;
    int64_t heads = w->rows / d;
    nmlp_train_rope_rotate(&net->exec, dy, net->rope, s, t, heads, d, -1);
    if (norm) norm_back(net, dy, dy, raw, norm, s * heads, false);
}

static void attention_backward(nmlp_train_net *net, int64_t l, const nmlp_train_real *x, int64_t s, int64_t t) {
    const nmlp_train_net_layer *layer = &net->layers[l];
    const nmlp_train_net_acts *a = &net->acts;
    project_back(net, net->d_act, net->d_rows, net->kept[l].mixed, layer->o, layer->o_bias, s, false);
    project_qkv(net, layer, x, s, t, 0);
    nmlp_train_heads heads = heads_of(net, l, s, t);
    heads.d_out = net->d_act;
    heads.dq = net->d_q;
    heads.dk = net->d_k;
    heads.dv = net->d_v;
    nmlp_train_attention_backward(&net->exec, &heads);
    heads_back(net, net->d_q, a->q_raw, layer->q, layer->q_norm, s, t);
    heads_back(net, net->d_k, a->k_raw, layer->k, layer->k_norm, s, t);
    project_back(net, net->d_normed, net->d_q, a->normed, layer->q, layer->q_bias, s, false);
    project_back(net, net->d_normed, net->d_k, a->normed, layer->k, layer->k_bias, s, true);
    project_back(net, net->d_normed, net->d_v, a->normed, layer->v, layer->v_bias, s, true);
    norm_back(net, net->d_rows, net->d_normed, x, layer->attention_norm, s, true);
}

void nmlp_train_net_layer_backward(nmlp_train_net *net, int64_t l, const nmlp_train_real *x, int64_t s, int64_t t) {
    mlp_backward(net, l, s);
    if (l > net->lowest || net->layers[l].train_attention) attention_backward(net, l, x, s, t);
}

#endif
