/* Causal attention of one head, queries in blocks of QB. Backward computes the probabilities again from the stored log-sums, so memory
 * does not grow with T^2. */
#ifndef NMLP_TRAIN_ATTENTION_BODY_H
#define NMLP_TRAIN_ATTENTION_BODY_H

#include "train/rows_body.h"

enum { QB = 8 * MR };

static int64_t strips_of(int64_t n) { return (n + NR - 1) / NR; }
static int64_t packed_elems(int64_t k, int64_t n) { return strips_of(n) * NR * k; }

/* Two packed operands of the whole head, two of a block, two score blocks, the copy of A. */
static int64_t attend_scratch(int64_t t, int64_t d) {
    return 3 * (packed_elems(d, t) + packed_elems(t, d)) + 2 * QB * t + packed_elems(QB, d) + MB * A_STRIDE;
}

static nmlp_real *take(nmlp_real **scratch, int64_t n) {
    nmlp_real *block = *scratch;
    *scratch += n;
    return block;
}

static void pack_all(nmlp_real *packed, const nmlp_real *b, int64_t ldb, bool transposed, int64_t k, int64_t n) {
    pack_b(&(nmlp_packing){.packed = packed, .b = b, .ldb = ldb, .transposed = transposed, .k = k, .n = n, .b_rows = k,
                           .strip_end = strips_of(n)});
}

/* p [rows, q0+rows] = exp(scale q k^T - lse), zero above the diagonal; without `known` the log-sums are found first. */
static void probabilities(const nmlp_attend *h, nmlp_real *p, const nmlp_real *k_packed, nmlp_real *scratch, int64_t q0,
                          int64_t rows, bool known) {
    int64_t seen = q0 + rows;
    multiply(&(nmlp_product){.c = p, .ldc = seen, .a = h->q + q0 * h->q_stride, .lda = h->q_stride, .b = k_packed,
                             .b_rows = h->d, .m = rows, .n = seen, .k = h->d, .scratch = scratch});
    for (int64_t i = 0; i < rows; i++) {
        nmlp_real *row = p + i * seen;
        int64_t n = q0 + i + 1;
        for (int64_t j = 0; j < n; j++) row[j] *= h->scale;
        if (known) {
            nmlp_real lse = h->lse[q0 + i];
            for (int64_t j = 0; j < n; j++) row[j] = real_exp(row[j] - lse);
        } else {
            double lse;
            nmlp_real inverse = 1 / exponentials(row, n, &lse);
            for (int64_t j = 0; j < n; j++) row[j] *= inverse;
            h->lse[q0 + i] = (nmlp_real)lse;
        }
        for (int64_t j = n; j < seen; j++) row[j] = 0;
    }
}

static void attend_forward(const nmlp_attend *h) {
    nmlp_real *at = h->scratch;
    nmlp_real *k_packed = take(&at, packed_elems(h->d, h->t));
    nmlp_real *v_packed = take(&at, packed_elems(h->t, h->d));
    nmlp_real *p = take(&at, QB * h->t);
    pack_all(k_packed, h->k, h->kv_stride, true, h->d, h->t);
    pack_all(v_packed, h->v, h->kv_stride, false, h->t, h->d);
    for (int64_t q0 = 0; q0 < h->t; q0 += QB) {
        int64_t rows = h->t - q0 < QB ? h->t - q0 : QB;
        probabilities(h, p, k_packed, at, q0, rows, false);
        multiply(&(nmlp_product){.c = h->out + q0 * h->q_stride, .ldc = h->q_stride, .a = p, .lda = q0 + rows,
                                 .b = v_packed, .b_rows = h->t, .m = rows, .n = h->d, .k = q0 + rows, .scratch = at});
    }
}

/* ds = p * (dp - sum(d_out * out)) * scale, in place of dp. */
static void score_gradients(const nmlp_attend *h, const nmlp_real *p, nmlp_real *dp, int64_t q0, int64_t rows) {
    int64_t seen = q0 + rows;
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = (q0 + i) * h->q_stride;
        nmlp_real mean = dot(h->d_out + at, h->out + at, h->d);
        for (int64_t j = 0; j < seen; j++) dp[i * seen + j] = p[i * seen + j] * (dp[i * seen + j] - mean) * h->scale;
    }
}

/* out [seen,D] += s^T rows, s [rows,seen], rows [rows,D] */
static void add_transposed(const nmlp_attend *h, nmlp_real *out, const nmlp_real *s, const nmlp_real *block, int64_t rows,
                           int64_t seen, nmlp_real *packed, nmlp_real *scratch) {
    pack_all(packed, block, h->q_stride, false, rows, h->d);
    multiply(&(nmlp_product){.c = out, .ldc = h->kv_stride, .a = s, .lda = seen, .a_transposed = true, .b = packed,
                             .b_rows = rows, .m = seen, .n = h->d, .k = rows, .accumulate = true, .scratch = scratch});
}

static void attend_backward(const nmlp_attend *h) {
    nmlp_real *at = h->scratch;
    nmlp_real *kt_packed = take(&at, packed_elems(h->d, h->t));
    nmlp_real *vt_packed = take(&at, packed_elems(h->d, h->t));
    nmlp_real *k_packed = take(&at, packed_elems(h->t, h->d));
    nmlp_real *block = take(&at, packed_elems(QB, h->d));
    nmlp_real *p = take(&at, QB * h->t);
    nmlp_real *dp = take(&at, QB * h->t);
    pack_all(kt_packed, h->k, h->kv_stride, true, h->d, h->t);
    pack_all(vt_packed, h->v, h->kv_stride, true, h->d, h->t);
    pack_all(k_packed, h->k, h->kv_stride, false, h->t, h->d);
    for (int64_t q0 = 0; q0 < h->t; q0 += QB) {
        int64_t rows = h->t - q0 < QB ? h->t - q0 : QB;
        int64_t seen = q0 + rows;
        const nmlp_real *d_out = h->d_out + q0 * h->q_stride;
        probabilities(h, p, kt_packed, at, q0, rows, true);
        multiply(&(nmlp_product){.c = dp, .ldc = seen, .a = d_out, .lda = h->q_stride, .b = vt_packed, .b_rows = h->d,
                                 .m = rows, .n = seen, .k = h->d, .scratch = at});
        score_gradients(h, p, dp, q0, rows);
        add_transposed(h, h->dv, p, d_out, rows, seen, block, at);
        add_transposed(h, h->dk, dp, h->q + q0 * h->q_stride, rows, seen, block, at);
        multiply(&(nmlp_product){.c = h->dq + q0 * h->q_stride, .ldc = h->q_stride, .a = dp, .lda = seen, .b = k_packed,
                                 .b_rows = h->t, .m = rows, .n = h->d, .k = seen, .scratch = at});
    }
}

#endif
