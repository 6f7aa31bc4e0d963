/* Gram matrices of calibration rows, X^T X and Y^T X, and what makes them robust: token weights, caps, shrinking.
 * Products are f32 by BLAS, or by the matrix kernels where those round activations to bf16 anyway. */
#ifndef NMLP_COMPRESS_CALIBRATE_GRAM_H
#define NMLP_COMPRESS_CALIBRATE_GRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "compress/calibrate/window_share.h"
#include "kernels/kernels.h"
#include "linalg/linalg.h"

/* weights [S]: inverse size of each row of rows [S,H]; then, of all tokens, scaled to mean square 1. */
void nmlp_token_weights(float *weights, const float *rows, int64_t s, int64_t h);
void nmlp_token_weights_scale(float *weights, int64_t s);

/* Scales tokens whose squared norm is above `share` of the sum over all tokens down to it (0: none). One massive token
 * would otherwise be all the statistics know. *n_capped: how many were scaled. With `of` the rows [S,H] are the
 * calibration tokens of this process, and all tokens are those of its group (NULL: these). */
nmlp_status nmlp_gram_cap_tokens(nmlp_pool *pool, const nmlp_window_share *of, float *rows, int64_t s, int64_t h,
                                 double share, int64_t *n_capped, nmlp_err *err);

/* C [n,n] += X^T X of X [S,n], C symmetric. With kernels that round to bf16, products are of rounded values, summed in
 * f32 over at most 2048 tokens; else as nmlp_linalg_gram_add. */
nmlp_status nmlp_gram_add(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s, int64_t n,
                          nmlp_err *err);
/* C [m,n] += Y^T X of Y [S,m], X [S,n], in the same way. */
nmlp_status nmlp_gram_add_cross(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *y, const float *x,
                                int64_t s, int64_t m, int64_t n, nmlp_err *err);

/* The same for the blocks of C that belong to this process of a group (all of C where it is alone; a symmetric C only
 * on and below the diagonal). Calls with a multiple of NMLP_GRAM_TOKENS rows each have the result of one call. */
enum { NMLP_GRAM_TOKENS = 2048 };
nmlp_status nmlp_gram_add_blocks(const nmlp_kernels *kernels, nmlp_pool *pool, const nmlp_process_group *group,
                                 double *c, const float *y, const float *x, int64_t s, int64_t m, int64_t n,
                                 bool symmetric, nmlp_err *err);
/* Process `owner` gets the blocks of the others; a symmetric C becomes whole there. */
nmlp_status nmlp_gram_collect(const nmlp_kernels *kernels, nmlp_pool *pool, const nmlp_process_group *group, double *c,
                              int64_t m, int64_t n, bool symmetric, int owner, nmlp_err *err);

/* C [n,n] = X^T X / S over the S calibration tokens of all processes, rows [own tokens,n] of this one: in the memory of
 * process `owner`; in that of the others C is spent. */
nmlp_status nmlp_gram_mean_shared(const nmlp_kernels *kernels, nmlp_pool *pool, const nmlp_window_share *share,
                                  double *c, const float *rows, int64_t n, int owner, nmlp_err *err);

/* C [n,n] = X^T X / S of X [S,n], as nmlp_gram_add. */
nmlp_status nmlp_gram_mean(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s,
                           int64_t n, nmlp_err *err);

/* C <- a C + (1-a) diag(C), a = S/(S+n): few tokens say little about correlations. */
void nmlp_gram_shrink(double *c, int64_t n, int64_t s);

/* The same for an output Gram K [m,m] of y = W x, W [m,n], where the input's Gram was never formed: K <- a K + (1-a) W
 * diag(c) W^T with c [n] the mean squares of the inputs. `narrow`: the second term in f32 products of 256 inputs summed
 * in f64. */
nmlp_status nmlp_gram_shrink_output(nmlp_pool *pool, double *k, const double *w, const double *c, int64_t m, int64_t n,
                                    int64_t s, bool narrow, nmlp_err *err);

#endif
