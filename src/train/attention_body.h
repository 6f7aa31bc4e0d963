/* Causal attention of one head, queries in blocks of QB. Backward computes the probabilities again from the stored
 * log-sums, so memory does not grow with T^2. */
#ifndef NMLP_TRAIN_ATTENTION_BODY_H
#define NMLP_TRAIN_ATTENTION_BODY_H

#include "base/ints.h"
#include "train/rows_body.h"

enum { QB = 96 }; /* a multiple of every set's block of rows */

static int64_t packed_elems(const nmlp_train_products *p, int64_t k, int64_t n) {
    return nmlp_round_up(n, p->strip) * nmlp_round_up(k, p->k_step) / p->per_real;
}

/* Where a head's scratch goes. Blocks begin at cache lines. */
typedef struct attend_blocks {
    nmlp_train_real *k_t, *v_t; /* packed [D,T] */
    nmlp_train_real *rows;      /* k or v, packed [T,D] */
    nmlp_train_real *block;     /* QB rows of queries, packed [QB,D] */
    nmlp_train_real *p, *dp;    /* [QB,T] */
    nmlp_train_real *multiply;
    int64_t elems;
} attend_blocks;

static attend_blocks blocks_of(const nmlp_train_products *p, nmlp_train_real *scratch, int64_t t, int64_t d) {
    int64_t sizes[] = {
        packed_elems(p, d, t), packed_elems(p, d, t), packed_elems(p, t, d), packed_elems(p, QB, d), QB * t, QB * t};
    int64_t at[6];
    int64_t end = 0;
    for (int i = 0; i < 6; i++) {
        at[i] = end;
        end += nmlp_round_up(sizes[i], 64 / (int64_t)sizeof(nmlp_train_real));
    }
    attend_blocks b = {.elems = end + p->multiply_scratch};
    if (!scratch) return b;
    b.k_t = scratch + at[0];
    b.v_t = scratch + at[1];
    b.rows = scratch + at[2];
    b.block = scratch + at[3];
    b.p = scratch + at[4];
    b.dp = scratch + at[5];
    b.multiply = scratch + end;
    return b;
}

static int64_t attend_scratch(const nmlp_train_products *p, int64_t t, int64_t d) {
    return blocks_of(p, NULL, t, d).elems;
}

static void pack_all(const nmlp_train_products *p, nmlp_train_real *packed, const nmlp_train_real *b, int64_t ldb,
                     bool transposed, int64_t k, int64_t n) {
    p->pack_b(&(nmlp_train_b_packing){.packed = packed,
                                      .b = b,
                                      .ldb = ldb,
                                      .transposed = transposed,
                                      .k = k,
                                      .n = n,
                                      .b_rows = nmlp_round_up(k, p->k_step),
                                      .strip_end = nmlp_round_up(n, p->strip) / p->strip});
}

/* p [rows, q0+rows] = exp(scale q k^T - lse), zero above the diagonal; without `known` the log-sums are found first. */
static void probabilities(const nmlp_train_attention *h, const attend_blocks *b, int64_t q0, int64_t rows, bool known) {
    int64_t seen = q0 + rows;
    h->products->multiply(&(nmlp_train_product){.c = b->p,
                                                .ldc = seen,
                                                .a = h->q + q0 * h->q_stride,
                                                .lda = h->q_stride,
                                                .b = b->k_t,
                                                .b_rows = nmlp_round_up(h->d, h->products->k_step),
                                                .m = rows,
                                                .n = seen,
                                                .k = h->d,
                                                .scratch = b->multiply});
    for (int64_t i = 0; i < rows; i++) {
        nmlp_train_real *row = b->p + i * seen;
        int64_t n = q0 + i + 1;
        if (known) {
            nmlp_train_real lse = h->lse[q0 + i];
            for (int64_t j = 0; j < n; j++) row[j] = real_exp(row[j] * h->scale - lse);
        } else {
            double lse;
            for (int64_t j = 0; j < n; j++) row[j] *= h->scale;
            nmlp_train_real inverse = 1 / exponentials(row, n, &lse);
            for (int64_t j = 0; j < n; j++) row[j] *= inverse;
            h->lse[q0 + i] = (nmlp_train_real)lse;
        }
        for (int64_t j = n; j < seen; j++) row[j] = 0;
    }
}

/* out [rows,D], rows q_stride apart, = s [rows,seen] times the packed rows of k or v */
static void mix_rows(const nmlp_train_attention *h, const attend_blocks *b, nmlp_train_real *out,
                     const nmlp_train_real *s, int64_t rows, int64_t seen) {
    h->products->multiply(&(nmlp_train_product){.c = out,
                                                .ldc = h->q_stride,
                                                .a = s,
                                                .lda = seen,
                                                .b = b->rows,
                                                .b_rows = nmlp_round_up(h->t, h->products->k_step),
                                                .m = rows,
                                                .n = h->d,
                                                .k = seen,
                                                .scratch = b->multiply});
}

static void attend_forward(const nmlp_train_attention *h) {
    attend_blocks b = blocks_of(h->products, h->scratch, h->t, h->d);
    pack_all(h->products, b.k_t, h->k, h->kv_stride, true, h->d, h->t);
    pack_all(h->products, b.rows, h->v, h->kv_stride, false, h->t, h->d);
    for (int64_t q0 = 0; q0 < h->t; q0 += QB) {
        int64_t rows = h->t - q0 < QB ? h->t - q0 : QB;
        probabilities(h, &b, q0, rows, false);
        mix_rows(h, &b, h->out + q0 * h->q_stride, b.p, rows, q0 + rows);
    }
}

/* ds = p * (dp - sum(d_out * out)) * scale, in place of dp. */
static void score_gradients(const nmlp_train_attention *h, const attend_blocks *b, int64_t q0, int64_t rows) {
    int64_t seen = q0 + rows;
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = (q0 + i) * h->q_stride;
        nmlp_train_real mean = dot(h->d_out + at, h->out + at, h->d);
        const nmlp_train_real *p = b->p + i * seen;
        nmlp_train_real *dp = b->dp + i * seen;
        for (int64_t j = 0; j < seen; j++) dp[j] = p[j] * (dp[j] - mean) * h->scale;
    }
}

/* out [seen,D] += s^T queries, s [rows,seen], queries [rows,D] */
static void add_transposed(const nmlp_train_attention *h, const attend_blocks *b, nmlp_train_real *out,
                           const nmlp_train_real *s, const nmlp_train_real *queries, int64_t rows, int64_t seen) {
    pack_all(h->products, b->block, queries, h->q_stride, false, rows, h->d);
    h->products->multiply(&(nmlp_train_product){.c = out,
                                                .ldc = h->kv_stride,
                                                .a = s,
                                                .lda = seen,
                                                .a_transposed = true,
                                                .b = b->block,
                                                .b_rows = nmlp_round_up(rows, h->products->k_step),
                                                .m = seen,
                                                .n = h->d,
                                                .k = rows,
                                                .accumulate = true,
                                                .scratch = b->multiply});
}

static void attend_backward(const nmlp_train_attention *h) {
    attend_blocks b = blocks_of(h->products, h->scratch, h->t, h->d);
    pack_all(h->products, b.k_t, h->k, h->kv_stride, true, h->d, h->t);
    pack_all(h->products, b.v_t, h->v, h->kv_stride, true, h->d, h->t);
    pack_all(h->products, b.rows, h->k, h->kv_stride, false, h->t, h->d);
    for (int64_t q0 = 0; q0 < h->t; q0 += QB) {
        int64_t rows = h->t - q0 < QB ? h->t - q0 : QB;
        int64_t seen = q0 + rows;
        const nmlp_train_real *d_out = h->d_out + q0 * h->q_stride;
        probabilities(h, &b, q0, rows, true);
        h->products->multiply(&(nmlp_train_product){.c = b.dp,
                                                    .ldc = seen,
                                                    .a = d_out,
                                                    .lda = h->q_stride,
                                                    .b = b.v_t,
                                                    .b_rows = nmlp_round_up(h->d, h->products->k_step),
                                                    .m = rows,
                                                    .n = seen,
                                                    .k = h->d,
                                                    .scratch = b.multiply});
        score_gradients(h, &b, q0, rows);
        add_transposed(h, &b, h->dv, b.p, d_out, rows, seen);
        add_transposed(h, &b, h->dk, b.dp, h->q + q0 * h->q_stride, rows, seen);
        mix_rows(h, &b, h->dq + q0 * h->q_stride, b.dp, rows, seen);
    }
}

static void attend_next(nmlp_train_real *out, const nmlp_train_real *q, const nmlp_train_real *k,
                        const nmlp_train_real *v, int64_t kv_stride, int64_t n, int64_t d, nmlp_train_real *scores) {
    double lse;
    nmlp_train_real scale = (nmlp_train_real)(1 / sqrt((double)d));
    for (int64_t j = 0; j < n; j++) scores[j] = scale * dot(q, k + j * kv_stride, d);
    nmlp_train_real inverse = 1 / exponentials(scores, n, &lse);
    memset(out, 0, (size_t)d * sizeof *out);
    for (int64_t j = 0; j < n; j++) {
        nmlp_train_real p = scores[j] * inverse;
        for (int64_t i = 0; i < d; i++) out[i] += p * v[j * kv_stride + i];
    }
}

#endif
