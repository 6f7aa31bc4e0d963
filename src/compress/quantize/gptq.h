/* Rounding a weight matrix to few bits so that its outputs change least on calibration data.
 *
 * W [N,K] seen through inputs with second moments C [K,K] loses tr (W-Q) C (W-Q)^T. Rows are independent. For one row
 * and C = R R^T with R upper triangular the loss is |(w-q) R|^2, whose term k holds the errors of columns up to k: so
 * columns are rounded one after the other, each to take up the errors of those before it,
 *
 *     q_k = round(w_k + sum_{j<k} (w_j - q_j) R_jk / R_kk),
 *
 * which is GPTQ without an inverse. Columns go in the order of falling C_kk; groups and their scales are those of the
 * columns as stored, found before by a search. Then scales, zero points and codes are improved in turn, each by exact
 * steps along one coordinate, until a few sweeps are done. */
#ifndef NMLP_COMPRESS_QUANTIZE_GPTQ_H
#define NMLP_COMPRESS_QUANTIZE_GPTQ_H

#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "tensor/view.h"

/* What matrices with the same inputs share. */
typedef struct nmlp_gptq {
    int64_t n;       /* K */
    int32_t *order;  /* [K] columns in the order of rounding */
    float *feedback; /* [K,K] in that order: row j, column k > j: R_jk / R_kk */
    float *moments;  /* [K,K] C as given */
    int sweeps;      /* of improving scales and codes behind the rounding */
    nmlp_pool *pool;
} nmlp_gptq;

/* moments [K,K] is destroyed; a small share of its mean diagonal is added to the diagonal. */
nmlp_status nmlp_gptq_init(nmlp_gptq *gptq, nmlp_pool *pool, double *moments, int64_t n, nmlp_err *err);
void nmlp_gptq_fini(nmlp_gptq *gptq);

/* Rows that are rounded together: a matrix may be rounded in parts that begin at a multiple of it, to the same bits. */
enum { NMLP_GPTQ_ROWS = 128 };

/* Fills codes, scales and what is per group of `out`, a quantised view [N,K] with writable memory, from w [N,K]. `loss`
 * (may be NULL) receives tr (W-Q) C (W-Q)^T. */
nmlp_status nmlp_gptq_round(const nmlp_gptq *gptq, const float *w, const nmlp_view *out, double *loss, nmlp_err *err);

/* tr (W-Q) C (W-Q)^T of any Q, e.g. of nearest rounding. */
nmlp_status nmlp_gptq_loss(const nmlp_gptq *gptq, const float *w, const nmlp_view *q, double *loss, nmlp_err *err);

#endif
