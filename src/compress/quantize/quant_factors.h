/* Thin factors in fewer bits.
 *
 * W = u v is the same for every basis of the rank space. In one that makes u orthonormal, errors of v reach the output
 * as they are, so v is rounded like a dense matrix; there the latent values of an SVD do not depend on each other, and
 * rounding u would have nothing to feed back, so a random rotation (Hadamard blocks with signs) mixes them first. Then
 * u is fitted anew to the rounded v, u* = W C v^T (v C v^T)^-1, and rounded by v C v^T. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_FACTORS_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_FACTORS_H

#include "compress/quantize/quant_layer.h"

typedef struct nmlp_quant_factors {
    const nmlp_gptq *gptq; /* of the inputs of v */
    const double *moments; /* [K,K] behind it */
    const nmlp_quant_format *format;
    const nmlp_factors *source; /* [n] */
    nmlp_factors *out;          /* [n] receive quantised views */
    int n;                      /* above 1: they share v */
    nmlp_arena *arena;
    nmlp_pool *pool;
} nmlp_quant_factors;

nmlp_status nmlp_quant_factors_make(const nmlp_quant_factors *factors, nmlp_err *err);

#endif
