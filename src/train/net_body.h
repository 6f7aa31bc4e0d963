/* Included by net_f32.c and net_f64.c. */
#ifndef NMLP_TRAIN_NET_BODY_H
#define NMLP_TRAIN_NET_BODY_H

#include <string.h>

#include "engine/rope_table.h"
#include "train/bind_body.h"
#include "train/layer_body.h"

static nmlp_status new_reals(nmlp_train_net *net, nmlp_train_real **out, int64_t rows, int64_t cols, nmlp_err *err) {
    size_t n;
    *out = NULL;
    if (nmlp_mul_overflows((size_t)rows, (size_t)cols, &n))
        return nmlp_fail(err, NMLP_E_NOMEM, "a buffer of %lld x %lld numbers does not fit", (long long)rows,
                         (long long)cols);
    *out = nmlp_arena_new(&net->arena, n, sizeof **out, err);
    return *out ? NMLP_OK : NMLP_E_NOMEM;
}

static nmlp_status new_inner(nmlp_train_net *net, int64_t s, nmlp_err *err) {
    int64_t largest = 1;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        int64_t rank = 1;
        for (int64_t l = 0; l < net->model->config.n_layers; l++) {
            int64_t r = nmlp_factors_rank(&net->model->layers[l].mlp[i]);
            rank = r > rank ? r : rank;
        }
        NMLP_RETURN_IF_FAILED(new_reals(net, &net->acts.inner[i], s, rank, err));
        largest = rank > largest ? rank : largest;
    }
    return new_reals(net, &net->d_inner, s, largest, err);
}

static nmlp_status new_acts(nmlp_train_net *net, int64_t s, nmlp_err *err) {
    const nmlp_config *c = &net->model->config;
    int64_t q_dim = c->n_heads * c->head_dim;
    int64_t kv_dim = c->n_kv_heads * c->head_dim;
    nmlp_train_net_acts *a = &net->acts;
    struct {
        nmlp_train_real **at;
        int64_t cols;
    } parts[] = {
        {&a->normed, c->hidden},
        {&a->q, q_dim},
        {&a->k, kv_dim},
        {&a->v, kv_dim},
        {&a->mlp_in, c->hidden},
        {&a->gate, c->intermediate},
        {&a->up, c->intermediate},
        {&a->act, c->intermediate},
        {&net->d_rows, c->hidden},
        {&net->d_normed, c->hidden},
        {&net->d_q, q_dim},
        {&net->d_k, kv_dim},
        {&net->d_v, kv_dim},
        {&net->d_act, c->intermediate > q_dim ? c->intermediate : q_dim},
        {&a->q_raw, c->features->qk_norm ? q_dim : 1},
        {&a->k_raw, c->features->qk_norm ? kv_dim : 1},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        NMLP_RETURN_IF_FAILED(new_reals(net, parts[i].at, s, parts[i].cols, err));
    return new_inner(net, s, err);
}

/* The head is packed once for each block of rows: many rows, but within 64 MB of logits. */
static int64_t rows_of_logits(int64_t vocab, int64_t most) {
    int64_t rows = ((int64_t)64 << 20) / (vocab * (int64_t)sizeof(nmlp_train_real)) / 32 * 32;
    rows = rows < 32 ? 32 : rows;
    return rows < most ? rows : most;
}

static nmlp_status new_buffers(nmlp_train_net *net, nmlp_err *err) {
    const nmlp_config *c = &net->model->config;
    net->inputs = nmlp_arena_new(&net->arena, (size_t)c->n_layers + 1, sizeof *net->inputs, err);
    net->kept = nmlp_arena_new(&net->arena, (size_t)c->n_layers, sizeof *net->kept, err);
    net->losses = nmlp_arena_new(&net->arena, (size_t)net->loss_rows, sizeof *net->losses, err);
    net->nlls = nmlp_arena_new(&net->arena, (size_t)net->loss_rows, sizeof *net->nlls, err);
    net->matches = nmlp_arena_new(&net->arena, (size_t)net->max_s, sizeof *net->matches, err);
    if (!net->inputs || !net->kept || !net->losses || !net->nlls || !net->matches) return NMLP_E_NOMEM;
    for (int64_t l = 0; l <= c->n_layers; l++)
        NMLP_RETURN_IF_FAILED(new_reals(net, &net->inputs[l], net->max_s, c->hidden, err));
    for (int64_t l = 0; l < c->n_layers; l++) {
        nmlp_train_net_kept *kept = &net->kept[l];
        NMLP_RETURN_IF_FAILED(new_reals(net, &kept->mixed, net->max_s, c->n_heads * c->head_dim, err));
        NMLP_RETURN_IF_FAILED(new_reals(net, &kept->lse, net->max_s, c->n_heads, err));
        NMLP_RETURN_IF_FAILED(new_reals(net, &kept->middle, net->max_s, c->hidden, err));
    }
    NMLP_RETURN_IF_FAILED(new_reals(net, &net->logits, net->loss_rows, c->vocab, err));
    NMLP_RETURN_IF_FAILED(new_reals(net, &net->teacher, net->loss_rows, c->vocab, err));
    return new_acts(net, net->max_s, err);
}

static nmlp_status new_rope(nmlp_train_net *net, nmlp_err *err) {
    const nmlp_config *c = &net->model->config;
    int64_t n = net->max_t * c->head_dim;
    float *table = nmlp_mem_new((size_t)n, sizeof *table, err);
    if (!table) return NMLP_E_NOMEM;
    nmlp_rope_table_fill(table, &c->rope, net->max_t, c->head_dim);
    nmlp_status st = new_reals(net, &net->rope, net->max_t, c->head_dim, err);
    for (int64_t i = 0; st == NMLP_OK && i < n; i++) net->rope[i] = (nmlp_train_real)table[i];
    nmlp_mem_free(table);
    return st;
}

static nmlp_status check_supported(const nmlp_model *model, nmlp_err *err) {
    const nmlp_config *c = &model->config;
    const char *beyond = c->features->fused ? "fused projections" : nmlp_config_beyond_plain(c);
    if (!beyond) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: training does not know %s, which this %s model has",
                     model->checkpoint.dir, beyond, c->family);
}

nmlp_status nmlp_train_net_create(nmlp_train_net **out, const nmlp_model *model, const nmlp_train_net_options *options,
                                  nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    NMLP_RETURN_IF_FAILED(check_supported(model, err));
    nmlp_train_net *net = nmlp_mem_new(1, sizeof *net, err);
    if (!net) return NMLP_E_NOMEM;
    net->model = model;
    net->max_s = options->s;
    net->max_t = options->t;
    net->loss_rows = rows_of_logits(model->config.vocab, options->s);
    nmlp_arena_init(&net->arena);
    NMLP_TRY(nmlp_train_exec_init(&net->exec, options->isa, options->pool, options->t, model->config.head_dim, err));
    NMLP_TRY(nmlp_train_net_bind(net, options->set, err));
    NMLP_TRY(new_buffers(net, err));
    NMLP_TRY(new_rope(net, err));
    *out = net;
out:
    if (st != NMLP_OK) nmlp_train_net_destroy(net);
    return st;
}

void nmlp_train_net_destroy(nmlp_train_net *net) {
    if (!net) return;
    nmlp_train_exec_fini(&net->exec);
    nmlp_arena_fini(&net->arena);
    nmlp_mem_free(net);
}

nmlp_train_param *nmlp_train_net_params(nmlp_train_net *net, size_t *n) {
    *n = net->n_params;
    return net->params;
}

nmlp_train_exec *nmlp_train_net_exec(nmlp_train_net *net) { return &net->exec; }

void nmlp_train_net_clear_grads(nmlp_train_net *net) {
    for (size_t i = 0; i < net->n_params; i++) {
        nmlp_train_param *p = &net->params[i];
        if (p->grad) memset(p->grad, 0, (size_t)(p->rows * p->cols) * sizeof *p->grad);
    }
}

/* Losses of rows first..first+n-1 of the normalised hidden states; their gradient goes to d_normed. */
static nmlp_train_batch_loss head_rows(nmlp_train_net *net, const nmlp_train_batch *b, const nmlp_train_real *rows,
                                       int64_t first, int64_t n) {
    const nmlp_train_param *head = net->lm_head;
    const nmlp_train_real *x = rows + first * head->cols;
    nmlp_train_batch_loss sum = {0};
    nmlp_train_linear_forward(&net->exec, net->logits, x, head->data, n, head->rows, head->cols);
    if (b->teacher) b->teacher(b->ctx, first, n, net->teacher);
    nmlp_train_loss_rows(&net->exec, &(nmlp_train_losses){.logits = net->logits,
                                                          .teacher = b->teacher ? net->teacher : NULL,
                                                          .targets = b->targets + first,
                                                          .s = n,
                                                          .v = head->rows,
                                                          .scale = (nmlp_train_real)b->scale,
                                                          .loss = net->losses,
                                                          .nll = net->nlls});
    for (int64_t i = 0; i < n; i++) {
        sum.loss += net->losses[i];
        sum.nll += net->nlls[i];
    }
    if (b->scale == 0) return sum;
    if (head->grad)
        nmlp_train_linear_backward_weight(&net->exec, head->grad, net->logits, x, n, head->rows, head->cols);
    nmlp_train_linear_backward_input(&net->exec, net->d_normed + first * head->cols, net->logits, head->data, n,
                                     head->rows, head->cols, false);
    return sum;
}

/* Pulls the output of layer l towards the teacher's; d_rows is its gradient. */
static double match_layer(nmlp_train_net *net, const nmlp_train_batch *b, int64_t l) {
    const nmlp_config *c = &net->model->config;
    double weight = b->match / (double)c->n_layers;
    double sum = 0;
    if (!b->hidden) return 0;
    nmlp_train_match_rows(&net->exec, &(nmlp_train_matching){.dx = net->d_rows,
                                                             .x = net->inputs[l + 1],
                                                             .y = b->hidden[l + 1],
                                                             .s = b->s,
                                                             .h = c->hidden,
                                                             .scale = b->scale * weight,
                                                             .loss = net->matches});
    for (int64_t i = 0; i < b->s; i++) sum += net->matches[i];
    return weight * sum;
}

/* Returns the part of the loss that is only known here. */
static double backward(nmlp_train_net *net, const nmlp_train_batch *b) {
    const nmlp_config *c = &net->model->config;
    double matched = 0;
    norm_back(net, net->d_rows, net->d_normed, net->inputs[c->n_layers], net->final_norm, b->s, false);
    for (int64_t l = c->n_layers - 1; l >= net->lowest; l--) {
        matched += match_layer(net, b, l);
        nmlp_train_net_layer_backward(net, l, net->inputs[l], b->s, b->t);
    }
    if (net->embedding->grad)
        nmlp_train_embed_backward(&net->exec, net->embedding->grad, net->d_rows, b->ids, b->s, c->hidden);
    return matched;
}

nmlp_train_batch_loss nmlp_train_net_loss(nmlp_train_net *net, const nmlp_train_batch *b) {
    const nmlp_config *c = &net->model->config;
    nmlp_train_batch_loss sum = {0};
    nmlp_train_real *rows = net->acts.normed;
    nmlp_train_embed_forward(&net->exec, net->inputs[0], net->embedding->data, b->ids, b->s, c->hidden);
    for (int64_t l = 0; l < c->n_layers; l++)
        nmlp_train_net_layer_forward(net, l, net->inputs[l], net->inputs[l + 1], b->s, b->t);
    nmlp_train_norm_forward(&net->exec, rows, net->inputs[c->n_layers], net->final_norm->data, c->rms_eps, b->s,
                            c->hidden);
    for (int64_t first = 0; first < b->s; first += net->loss_rows) {
        int64_t n = b->s - first < net->loss_rows ? b->s - first : net->loss_rows;
        nmlp_train_batch_loss part = head_rows(net, b, rows, first, n);
        sum.loss += part.loss;
        sum.nll += part.nll;
    }
    if (b->scale != 0) sum.loss += backward(net, b);
    return sum;
}

nmlp_status nmlp_train_growth_init(nmlp_train_growth *g, const nmlp_train_net *net, int64_t b, int64_t room,
                                   nmlp_err *err) {
    const nmlp_config *c = &net->model->config;
    size_t n = (size_t)(b * room * c->n_kv_heads * c->head_dim);
    *g = (nmlp_train_growth){.b = b, .room = room};
    nmlp_arena_init(&g->arena);
    g->k = nmlp_arena_new(&g->arena, (size_t)c->n_layers, sizeof *g->k, err);
    g->v = nmlp_arena_new(&g->arena, (size_t)c->n_layers, sizeof *g->v, err);
    for (int64_t l = 0; g->k && g->v && l < c->n_layers; l++) {
        g->k[l] = nmlp_arena_new(&g->arena, n, sizeof **g->k, err);
        g->v[l] = nmlp_arena_new(&g->arena, n, sizeof **g->v, err);
        if (!g->k[l] || !g->v[l]) return NMLP_E_NOMEM;
    }
    return g->k && g->v ? NMLP_OK : NMLP_E_NOMEM;
}

void nmlp_train_growth_fini(nmlp_train_growth *g) { nmlp_arena_fini(&g->arena); }

void nmlp_train_net_next(nmlp_train_net *net, nmlp_train_growth *g, const int32_t *ids, nmlp_train_real *logits) {
    const nmlp_config *c = &net->model->config;
    nmlp_train_real *rows = net->acts.normed;
    nmlp_train_embed_forward(&net->exec, net->inputs[0], net->embedding->data, ids, g->b, c->hidden);
    for (int64_t l = 0; l < c->n_layers; l++) layer_next(net, g, l, net->inputs[l], net->inputs[l + 1]);
    nmlp_train_norm_forward(&net->exec, rows, net->inputs[c->n_layers], net->final_norm->data, c->rms_eps, g->b,
                            c->hidden);
    nmlp_train_linear_forward(&net->exec, logits, rows, net->lm_head->data, g->b, c->vocab, c->hidden);
    g->length++;
}

#endif
