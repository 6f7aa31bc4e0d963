/* Second moments of a layer's MLP, from calibration rows to the matrices the factorisation wants. */
#ifndef NMLP_COMPRESS_CALIBRATE_GRAM_H
#define NMLP_COMPRESS_CALIBRATE_GRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "kernels/kernels.h"

/* Scales tokens whose squared norm is above `share` of the sum over all tokens down to it (0: none). One massive token
 * would otherwise be all the statistics know. *n_capped: how many were scaled. */
nmlp_status nmlp_gram_cap_tokens(nmlp_pool *pool, float *rows, int64_t s, int64_t h, double share, int64_t *n_capped,
                                 nmlp_err *err);

/* C [n,n] = X^T X / S of X [S,n], as nmlp_moments_gram. */
nmlp_status nmlp_gram_of(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s, int64_t n,
                         nmlp_err *err);

/* C <- a C + (1-a) diag(C), a = S/(S+n): few tokens say little about correlations. */
void nmlp_gram_shrink(double *c, int64_t n, int64_t s);

/* The same for an output Gram K [m,m] of y = W x, W [m,n], where the input's Gram was never formed: K <- a K + (1-a) W
 * diag(c) W^T with c [n] the mean squares of the inputs. `narrow`: the second term in f32 products of 256 inputs summed
 * in f64. */
nmlp_status nmlp_gram_shrink_output(nmlp_pool *pool, double *k, const double *w, const double *c, int64_t m, int64_t n,
                                    int64_t s, bool narrow, nmlp_err *err);

#endif
