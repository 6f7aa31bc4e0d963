/* Weights of a net: every tensor of the checkpoint becomes a param, found again by its address. Included by
 * net_<type>.c. */
#ifndef NMLP_TRAIN_BIND_BODY_H
#define NMLP_TRAIN_BIND_BODY_H

#include "tensor/quant.h"
#include "train/net_internal.h"

enum { WIDEN_STEP = 4096 };

static nmlp_status widen_rows(nmlp_train_net *net, nmlp_train_param *p, nmlp_err *err) {
    float *row = nmlp_arena_new(&net->arena, (size_t)p->cols, sizeof *row, err);
    if (!row) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < p->rows; i++) {
        nmlp_quant_row_to_f32(row, &p->source, i);
        for (int64_t j = 0; j < p->cols; j++) p->data[i * p->cols + j] = (nmlp_train_real)row[j];
    }
    return NMLP_OK;
}

static nmlp_status load_param(nmlp_train_net *net, nmlp_train_param *p, const nmlp_named_tensor *t, nmlp_err *err) {
    int64_t n = nmlp_view_elems(&t->view);
    float step[WIDEN_STEP];
    *p = (nmlp_train_param){.name = t->name, .source = t->view, .rows = t->view.shape[0]};
    p->cols = t->view.n_dims == 2 ? t->view.shape[1] : 1;
    p->data = nmlp_arena_new(&net->arena, (size_t)n, sizeof *p->data, err);
    if (!p->data) return NMLP_E_NOMEM;
    if (nmlp_dtype_is_quantised(t->view.dtype)) return widen_rows(net, p, err);
    size_t elem_bytes = nmlp_dtype_bytes(t->view.dtype);
    for (int64_t i = 0; i < n; i += WIDEN_STEP) {
        int64_t some = n - i < WIDEN_STEP ? n - i : WIDEN_STEP;
        nmlp_to_f32(step, (const char *)t->view.data + (size_t)i * elem_bytes, t->view.dtype, (size_t)some);
        for (int64_t j = 0; j < some; j++) p->data[i + j] = (nmlp_train_real)step[j];
    }
    return NMLP_OK;
}

/* NULL for an absent view. */
static nmlp_train_param *param_of(nmlp_train_net *net, const nmlp_view *view) {
    for (size_t i = 0; view->data && i < net->n_params; i++)
        if (net->params[i].source.data == view->data) return &net->params[i];
    return NULL;
}

static void bind_layer(nmlp_train_net *net, int64_t l) {
    const nmlp_layer *source = &net->model->layers[l];
    nmlp_train_net_layer *layer = &net->layers[l];
    layer->attention_norm = param_of(net, &source->attention_norm);
    layer->mlp_norm = param_of(net, &source->mlp_norm);
    layer->q = param_of(net, &source->attention[NMLP_ATTENTION_Q].w);
    layer->k = param_of(net, &source->attention[NMLP_ATTENTION_K].w);
    layer->v = param_of(net, &source->attention[NMLP_ATTENTION_V].w);
    layer->o = param_of(net, &source->attention[NMLP_ATTENTION_O].w);
    layer->q_bias = param_of(net, &source->q_bias);
    layer->k_bias = param_of(net, &source->k_bias);
    layer->v_bias = param_of(net, &source->v_bias);
    layer->o_bias = param_of(net, &source->o_bias);
    layer->q_norm = param_of(net, &source->q_norm);
    layer->k_norm = param_of(net, &source->k_norm);
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        layer->mlp[i].w = param_of(net, &source->mlp[i].w);
        layer->mlp[i].u = param_of(net, &source->mlp[i].u);
        layer->mlp[i].v = param_of(net, &source->mlp[i].v);
    }
    layer->shared_basis = layer->mlp[NMLP_MLP_GATE].v && layer->mlp[NMLP_MLP_GATE].v == layer->mlp[NMLP_MLP_UP].v;
}

static nmlp_status train_param(nmlp_train_net *net, nmlp_train_param *p, nmlp_err *err) {
    if (!p || p->grad) return NMLP_OK;
    p->grad = nmlp_arena_new(&net->arena, (size_t)(p->rows * p->cols), sizeof *p->grad, err);
    return p->grad ? NMLP_OK : NMLP_E_NOMEM;
}

static nmlp_status train_mlp(nmlp_train_net *net, nmlp_train_net_layer *layer, nmlp_train_set set, nmlp_err *err) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        nmlp_train_net_matrix *m = &layer->mlp[i];
        if (m->w && set == NMLP_TRAIN_FACTORS) continue;
        NMLP_RETURN_IF_FAILED(train_param(net, m->w, err));
        NMLP_RETURN_IF_FAILED(train_param(net, m->u, err));
        NMLP_RETURN_IF_FAILED(train_param(net, m->v, err));
        layer->train_mlp = true;
    }
    return NMLP_OK;
}

static nmlp_status choose_trained(nmlp_train_net *net, nmlp_train_set set, nmlp_err *err) {
    int64_t n_layers = net->model->config.n_layers;
    for (size_t i = 0; set == NMLP_TRAIN_ALL && i < net->n_params; i++)
        NMLP_RETURN_IF_FAILED(train_param(net, &net->params[i], err));
    net->lowest = n_layers;
    if (set == NMLP_TRAIN_NOTHING) return NMLP_OK;
    for (int64_t l = n_layers - 1; l >= 0; l--) {
        nmlp_train_net_layer *layer = &net->layers[l];
        NMLP_RETURN_IF_FAILED(train_mlp(net, layer, set, err));
        layer->train_attention = set == NMLP_TRAIN_ALL;
        if (layer->train_mlp) net->lowest = l;
    }
    if (net->lowest < n_layers) return NMLP_OK;
    nmlp_fail(err, NMLP_E_UNSUPPORTED,
              "%s: no MLP matrix of this model is factorised, so there are no factors to train",
              net->model->checkpoint.dir);
    nmlp_fail_hint(err, "compress the model first, or train its dense MLPs (`train` mlp)");
    return NMLP_E_UNSUPPORTED;
}

/* Frozen matrices do not change: y = x w^T forward, dx = dy w back. */
static nmlp_status fix_frozen(nmlp_train_net *net, nmlp_train_set set, nmlp_err *err) {
    for (size_t i = 0; i < net->n_params; i++) {
        const nmlp_train_param *p = &net->params[i];
        if (p->grad || p->cols == 1 || (p == net->embedding && p != net->lm_head)) continue;
        NMLP_RETURN_IF_FAILED(nmlp_train_exec_fix(&net->exec, p->data, true, p->cols, p->rows, err));
        if (set == NMLP_TRAIN_NOTHING) continue;
        NMLP_RETURN_IF_FAILED(nmlp_train_exec_fix(&net->exec, p->data, false, p->rows, p->cols, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_train_net_bind(nmlp_train_net *net, nmlp_train_set set, nmlp_err *err) {
    const nmlp_checkpoint *checkpoint = &net->model->checkpoint;
    net->params = nmlp_arena_new(&net->arena, checkpoint->n_tensors, sizeof *net->params, err);
    net->layers = nmlp_arena_new(&net->arena, (size_t)net->model->config.n_layers, sizeof *net->layers, err);
    if (!net->params || !net->layers) return NMLP_E_NOMEM;
    for (size_t i = 0; i < checkpoint->n_tensors; i++) {
        NMLP_RETURN_IF_FAILED(load_param(net, &net->params[i], &checkpoint->tensors[i], err));
        net->n_params++;
    }
    net->embedding = param_of(net, &net->model->embedding);
    net->final_norm = param_of(net, &net->model->final_norm);
    net->lm_head = param_of(net, &net->model->lm_head);
    for (int64_t l = 0; l < net->model->config.n_layers; l++) bind_layer(net, l);
    NMLP_RETURN_IF_FAILED(choose_trained(net, set, err));
    return fix_frozen(net, set, err);
}

#endif
