/* A decoder model ready to be trained: weights in nmlp_train_real, gradients beside those that are trained, and the
 * pass forward and back.
 *
 * Memory is weights, gradients of what is trained, the input of every layer, and the activations of one layer: backward
 * computes each layer once more from its input. Letters: S rows of a batch (sequences one after the other), T tokens of
 * a sequence, H hidden, V vocabulary. */
#ifndef NMLP_TRAIN_NET_H
#define NMLP_TRAIN_NET_H

#include "model/model.h"
#include "train/exec.h"
#include "train/train_set.h"

/* One tensor of the checkpoint. */
typedef struct nmlp_train_param {
    const char *name; /* the checkpoint's */
    nmlp_view source;
    int64_t rows, cols; /* cols 1 for vectors */
    nmlp_train_real *data;
    nmlp_train_real *grad; /* NULL: frozen */
} nmlp_train_param;

typedef struct nmlp_train_net_options {
    const char *isa;
    nmlp_pool *pool;
    nmlp_train_set set;
    int64_t t; /* longest sequence */
    int64_t s; /* most rows in a batch, multiple of t */
} nmlp_train_net_options;

typedef struct nmlp_train_net nmlp_train_net;

/* The model must outlive the net. Refuses a model in which `set` names nothing. */
nmlp_status nmlp_train_net_create(nmlp_train_net **out, const nmlp_model *model, const nmlp_train_net_options *options,
                                  nmlp_err *err);
void nmlp_train_net_destroy(nmlp_train_net *net);
nmlp_train_param *nmlp_train_net_params(nmlp_train_net *net, size_t *n);
nmlp_train_exec *nmlp_train_net_exec(nmlp_train_net *net);
void nmlp_train_net_clear_grads(nmlp_train_net *net);

/* Fills logits [n,V] of the teacher for rows first..first+n-1 of the batch. */
typedef void nmlp_train_teacher_fn(void *ctx, int64_t first, int64_t n, nmlp_train_real *logits);

typedef struct nmlp_train_batch {
    const int32_t *ids;     /* [S] */
    const int32_t *targets; /* [S] the token after each */
    int64_t s, t;
    nmlp_train_teacher_fn *teacher; /* NULL: next-token loss */
    void *ctx;
    /* Hidden states of a teacher with the same layers, [L+1] of [S,H], behind layer l at l+1; NULL: not matched. Their
     * mean relative squared distance over layers, times `match`, is added to the loss where gradients are computed. */
    nmlp_train_real *const *hidden;
    double match;
    double scale; /* factor of the gradient, e.g. 1/tokens of the step; 0: loss only */
} nmlp_train_batch;

typedef struct nmlp_train_batch_loss {
    double loss; /* sums over rows */
    double nll;
} nmlp_train_batch_loss;

/* Adds scale * d(loss)/d(param) to the gradients. Results do not depend on the number of threads. */
nmlp_train_batch_loss nmlp_train_net_loss(nmlp_train_net *net, const nmlp_train_batch *batch);

/* B sequences that grow by one token at a time, and the keys and values they have so far. */
typedef struct nmlp_train_growth {
    nmlp_arena arena;
    nmlp_train_real **k, **v; /* [L] of [B, room, n_kv_heads*D] */
    int64_t b, room;
    int64_t length; /* tokens each has; 0 begins anew */
} nmlp_train_growth;

/* B at most the net's rows, room at most its longest sequence. */
nmlp_status nmlp_train_growth_init(nmlp_train_growth *g, const nmlp_train_net *net, int64_t b, int64_t room,
                                   nmlp_err *err);
void nmlp_train_growth_fini(nmlp_train_growth *g);
/* Appends ids [B] and gives the logits [B,V] behind them. */
void nmlp_train_net_next(nmlp_train_net *net, nmlp_train_growth *g, const int32_t *ids, nmlp_train_real *logits);

#endif
