/* The arithmetic of training on one thread, behind one table per instruction set. exec.h spreads it over the pool.
 *
 * Letters: S rows (tokens), H columns, T tokens of a sequence, D head dimension, V vocabulary. Matrices are row-major.
 */
#ifndef NMLP_TRAIN_OPS_H
#define NMLP_TRAIN_OPS_H

#include "train/real.h"

/* C [m,n] = or += op(A) [m,k] B [k,n], B packed by pack_b. */
typedef struct nmlp_train_product {
    nmlp_train_real *c;
    int64_t ldc;
    const nmlp_train_real *a; /* [m,k], or [k,m] when `a_transposed` */
    int64_t lda;
    bool a_transposed;
    const nmlp_train_real *b; /* at the first strip */
    int64_t b_rows;           /* rows of its strips; at least k */
    int64_t m, n, k;
    bool accumulate;
    const nmlp_train_real
        *packed_a; /* its first group, by pack_a with k rounded up to k_step: used in place of `a`; may be NULL */
    nmlp_train_real *scratch; /* multiply_scratch elements; none with packed_a */
} nmlp_train_product;

/* op(A) [m,k] into groups of `group` rows, zero-padded; a group holds a_cols * group numbers, a_cols being k rounded up
 * to k_step. */
typedef struct nmlp_train_a_packing {
    nmlp_train_real *packed;
    const nmlp_train_real *a;
    int64_t lda;
    bool transposed;
    int64_t m, k, a_cols;
    int64_t group_begin, group_end; /* which groups to write */
} nmlp_train_a_packing;

/* B [k,n], or [n,k] when `transposed`, into strips of `strip` columns, zero-padded. A strip holds b_rows * strip
 * numbers, b_rows being k rounded up to the set's k_step; their type and order are the set's own. */
typedef struct nmlp_train_b_packing {
    nmlp_train_real *packed;
    const nmlp_train_real *b;
    int64_t ldb;
    bool transposed;
    int64_t k, n, b_rows;
    int64_t strip_begin, strip_end; /* which strips to write */
} nmlp_train_b_packing;

/* Matrix products of one set. */
typedef struct nmlp_train_products {
    const char *name;
    int64_t strip; /* columns of a packed strip */
    int64_t k_step;
    int64_t per_real;         /* packed numbers in the room of one nmlp_train_real */
    int64_t multiply_scratch; /* elements */
    void (*pack_b)(const nmlp_train_b_packing *packing);
    int64_t group;                                       /* rows of a packed group */
    void (*pack_a)(const nmlp_train_a_packing *packing); /* NULL: multiply takes A as it is */
    void (*multiply)(const nmlp_train_product *product);
} nmlp_train_products;

/* Causal attention of one query head over its sequence; rows are `q_stride` and `kv_stride` apart. */
typedef struct nmlp_train_attention {
    const nmlp_train_products *products;
    nmlp_train_real *out; /* [T,D], rows q_stride apart */
    const nmlp_train_real *q, *k, *v;
    nmlp_train_real *lse; /* [T] log of the sum of exponentials, written by forward, read by backward */
    int64_t q_stride, kv_stride;
    int64_t t, d;
    nmlp_train_real scale;
    /* backward: dq is overwritten, dk and dv (rows kv_stride apart) are added to */
    const nmlp_train_real *d_out;
    nmlp_train_real *dq, *dk, *dv;
    nmlp_train_real *scratch; /* attend_scratch elements */
} nmlp_train_attention;

/* One row of logits against a token or against a teacher's logits. */
typedef struct nmlp_train_loss_row {
    nmlp_train_real *logits;  /* [V]; replaced by the gradient when `scale` is not 0 */
    nmlp_train_real *teacher; /* [V], destroyed; NULL: next-token loss */
    int64_t target;           /* token; also scored beside a teacher */
    int64_t v;
    nmlp_train_real scale; /* factor of the gradient */
    double loss;           /* out: what is minimised */
    double nll;            /* out: negative log-likelihood of the target */
} nmlp_train_loss_row;

typedef struct nmlp_train_ops {
    const char *name;
    nmlp_train_products products;
    /* y [S,H] = x / rms(x) * w */
    void (*norm_forward)(nmlp_train_real *y, const nmlp_train_real *x, const nmlp_train_real *w, double eps, int64_t s,
                         int64_t h);
    /* dx = or += gradient through the norm of x */
    void (*norm_backward)(nmlp_train_real *dx, const nmlp_train_real *dy, const nmlp_train_real *x,
                          const nmlp_train_real *w, double eps, int64_t s, int64_t h, bool accumulate);
    /* dw [H] += sum over rows */
    void (*norm_backward_weight)(nmlp_train_real *dw, const nmlp_train_real *dy, const nmlp_train_real *x, double eps,
                                 int64_t s, int64_t h);
    /* Rotates heads of rows first..first+s-1 in place; position = row % t. sign +1 forward, -1 backward. */
    void (*rope)(nmlp_train_real *x, const nmlp_train_real *table, int64_t first, int64_t s, int64_t t, int64_t heads,
                 int64_t d, nmlp_train_real sign);
    void (*swiglu_forward)(nmlp_train_real *act, const nmlp_train_real *gate, const nmlp_train_real *up, int64_t n);
    /* gate and up are replaced by their gradients. */
    void (*swiglu_backward)(nmlp_train_real *gate, nmlp_train_real *up, const nmlp_train_real *d_act, int64_t n);
    int64_t (*attend_scratch)(const nmlp_train_products *products, int64_t t, int64_t d);
    void (*attend_forward)(const nmlp_train_attention *head);
    void (*attend_backward)(const nmlp_train_attention *head);
    /* out [D] of one query that sees n keys and values, kv_stride apart; scores [n] is scratch. */
    void (*attend_next)(nmlp_train_real *out, const nmlp_train_real *q, const nmlp_train_real *k,
                        const nmlp_train_real *v, int64_t kv_stride, int64_t n, int64_t d, nmlp_train_real *scores);
    void (*loss_row)(nmlp_train_loss_row *row);
    /* |x - y|^2 / |y|^2 of one row [H]; dx += scale times its gradient by x. */
    double (*match_row)(nmlp_train_real *dx, const nmlp_train_real *x, const nmlp_train_real *y, int64_t h,
                        double scale);
    void (*add)(nmlp_train_real *x, const nmlp_train_real *y, int64_t n); /* x += y */
} nmlp_train_ops;

/* The fastest set this CPU has; `isa` "ref", "avx2" or "avx512" asks for one and falls back to the portable set where
 * the CPU lacks it. */
const nmlp_train_ops *nmlp_train_ops_select(const char *isa);
/* Products to go with it: the set's own, or on a CPU with tiles those of "amx", which round operands to bf16 and sum in
 * f32 as mixed-precision training does. "amx-emu" is the same in plain C, "amx-emu-avx512" with its own order of
 * operands. */
const nmlp_train_products *nmlp_train_products_select(const char *isa);

#endif
