/* The operators of training over a pool: linear maps, norms, rotation, gated activation, attention, embedding, losses,
 * forward and backward. Work is split into blocks of fixed size over outputs, so results do not depend on the number of
 * threads.
 *
 * Letters: S rows of all sequences together, T tokens of a sequence (T divides S), N outputs, K inputs, H columns, V
 * vocabulary. Gradients of weights are added to; gradients of activations are overwritten unless a flag says otherwise.
 */
#ifndef NMLP_TRAIN_EXEC_H
#define NMLP_TRAIN_EXEC_H

#include "base/mem.h"
#include "base/pool.h"
#include "base/status.h"
#include "train/ops.h"

/* A right-hand operand that never changes, packed at its first use. */
typedef struct nmlp_train_fixed_operand {
    const nmlp_train_real *b;
    bool transposed;
    nmlp_train_real *packed;
    bool ready;
    struct nmlp_train_fixed_operand *next;
} nmlp_train_fixed_operand;

typedef struct nmlp_train_exec {
    const nmlp_train_ops *ops;
    const nmlp_train_products *products;
    nmlp_pool *pool; /* borrowed; may be NULL */
    nmlp_arena arena;
    nmlp_train_real *packed;   /* the right-hand operand of the product at work */
    nmlp_train_real *packed_a; /* the left-hand one, where the set packs it */
    nmlp_train_fixed_operand *fixed;
    nmlp_train_real *scratch; /* per thread */
    int64_t scratch_elems;    /* of one thread */
} nmlp_train_exec;

/* Sized for attention over sequences of at most t tokens with heads of d. */
nmlp_status nmlp_train_exec_init(nmlp_train_exec *e, const char *isa, nmlp_pool *pool, int64_t t, int64_t d,
                                 nmlp_err *err);
void nmlp_train_exec_fini(nmlp_train_exec *e);

/* Says that B [k,n], or [n,k] when transposed, stays as it is: products with it at the same address are spared packing.
 * Does nothing where packing is cheap beside the products. */
nmlp_status nmlp_train_exec_fix(nmlp_train_exec *e, const nmlp_train_real *b, bool transposed, int64_t k, int64_t n,
                                nmlp_err *err);

/* C [m,n] = or += op(A) op(B), all contiguous. */
typedef struct nmlp_train_matmul {
    nmlp_train_real *c;
    const nmlp_train_real *a; /* [m,k], or [k,m] when transposed */
    const nmlp_train_real *b; /* [k,n], or [n,k] when transposed */
    bool a_transposed, b_transposed, accumulate;
    int64_t m, n, k;
} nmlp_train_matmul;
void nmlp_train_exec_matmul(nmlp_train_exec *e, const nmlp_train_matmul *g);

/* y [S,N] = x [S,K] w^T */
void nmlp_train_linear_forward(nmlp_train_exec *e, nmlp_train_real *y, const nmlp_train_real *x,
                               const nmlp_train_real *w, int64_t s, int64_t n, int64_t k);
/* dx [S,K] = or += dy [S,N] w */
void nmlp_train_linear_backward_input(nmlp_train_exec *e, nmlp_train_real *dx, const nmlp_train_real *dy,
                                      const nmlp_train_real *w, int64_t s, int64_t n, int64_t k, bool accumulate);
/* dw [N,K] += dy^T x */
void nmlp_train_linear_backward_weight(nmlp_train_exec *e, nmlp_train_real *dw, const nmlp_train_real *dy,
                                       const nmlp_train_real *x, int64_t s, int64_t n, int64_t k);
/* y [S,N] += bias, db [N] += sum of rows */
void nmlp_train_bias_forward(nmlp_train_exec *e, nmlp_train_real *y, const nmlp_train_real *bias, int64_t s, int64_t n);
void nmlp_train_bias_backward(nmlp_train_exec *e, nmlp_train_real *db, const nmlp_train_real *dy, int64_t s, int64_t n);

void nmlp_train_norm_forward(nmlp_train_exec *e, nmlp_train_real *y, const nmlp_train_real *x, const nmlp_train_real *w,
                             double eps, int64_t s, int64_t h);
void nmlp_train_norm_backward(nmlp_train_exec *e, nmlp_train_real *dx, const nmlp_train_real *dy,
                              const nmlp_train_real *x, const nmlp_train_real *w, double eps, int64_t s, int64_t h,
                              bool accumulate);
void nmlp_train_norm_backward_weight(nmlp_train_exec *e, nmlp_train_real *dw, const nmlp_train_real *dy,
                                     const nmlp_train_real *x, double eps, int64_t s, int64_t h);

/* In place on x [S, heads*D]; table [T,D] rows cos|sin; sign -1 is the backward rotation. */
void nmlp_train_rope_rotate(nmlp_train_exec *e, nmlp_train_real *x, const nmlp_train_real *table, int64_t s, int64_t t,
                            int64_t heads, int64_t d, int sign);

void nmlp_train_swiglu_forward(nmlp_train_exec *e, nmlp_train_real *act, const nmlp_train_real *gate,
                               const nmlp_train_real *up, int64_t n);
/* gate and up are replaced by their gradients. */
void nmlp_train_swiglu_backward(nmlp_train_exec *e, nmlp_train_real *gate, nmlp_train_real *up,
                                const nmlp_train_real *d_act, int64_t n);

/* Causal attention with grouped queries over S/T sequences; q, out, d_out, dq [S, n_heads*D], k, v, dk, dv [S,
 * n_kv_heads*D]. */
typedef struct nmlp_train_heads {
    nmlp_train_real *out;
    const nmlp_train_real *q, *k, *v;
    nmlp_train_real *lse; /* [S/T, n_heads, T], from forward to backward */
    const nmlp_train_real *d_out;
    nmlp_train_real *dq, *dk, *dv; /* overwritten */
    int64_t s, t, n_heads, n_kv_heads, d;
} nmlp_train_heads;
void nmlp_train_attention_forward(nmlp_train_exec *e, const nmlp_train_heads *h);
void nmlp_train_attention_backward(nmlp_train_exec *e, const nmlp_train_heads *h);

/* The newest token of each of B sequences against the n tokens it has so far: q and out [B, n_heads*D], k and v [B,
 * room, n_kv_heads*D]. */
typedef struct nmlp_train_newest {
    nmlp_train_real *out;
    const nmlp_train_real *q, *k, *v;
    int64_t b, n, room, n_heads, n_kv_heads, d;
} nmlp_train_newest;
void nmlp_train_attention_next(nmlp_train_exec *e, const nmlp_train_newest *newest);

/* rows [S,H] of table [V,H]; d_table += rows, tokens in order. */
void nmlp_train_embed_forward(nmlp_train_exec *e, nmlp_train_real *rows, const nmlp_train_real *table,
                              const int32_t *ids, int64_t s, int64_t h);
void nmlp_train_embed_backward(nmlp_train_exec *e, nmlp_train_real *d_table, const nmlp_train_real *d_rows,
                               const int32_t *ids, int64_t s, int64_t h);

/* Loss of logits [S,V] against targets [S], or KL from a teacher's logits [S,V] (then destroyed). The logits become the
 * gradient times `scale`. `loss` and `nll` [S] receive each row's. */
typedef struct nmlp_train_losses {
    nmlp_train_real *logits;
    nmlp_train_real *teacher; /* NULL: next token */
    const int32_t *targets;
    int64_t s, v;
    nmlp_train_real scale;
    double *loss, *nll;
} nmlp_train_losses;
void nmlp_train_loss_rows(nmlp_train_exec *e, const nmlp_train_losses *losses);

/* How far hidden rows x [S,H] are from a teacher's y, each row relative to the teacher's: loss [S]; dx += scale times
 * the gradient by x. */
typedef struct nmlp_train_matching {
    nmlp_train_real *dx;
    const nmlp_train_real *x, *y;
    int64_t s, h;
    double scale;
    double *loss;
} nmlp_train_matching;
void nmlp_train_match_rows(nmlp_train_exec *e, const nmlp_train_matching *matching);

/* x += y, n elements */
void nmlp_train_rows_add(nmlp_train_exec *e, nmlp_train_real *x, const nmlp_train_real *y, int64_t n);

#endif
