/* A weight matrix W [N,K], dense or as the product of two thin factors: the type that makes a compressed MLP and a
 * dense one the same thing to everybody who uses it. */
#ifndef NMLP_TENSOR_FACTORS_H
#define NMLP_TENSOR_FACTORS_H

#include "tensor/view.h"

/* Exactly one of w.data and u.data is set; with factors W = u v. */
typedef struct nmlp_factors {
    nmlp_view w; /* [N,K] */
    nmlp_view u; /* [N,r] */
    nmlp_view v; /* [r,K] */
} nmlp_factors;

static inline bool nmlp_factors_is_dense(const nmlp_factors *f) { return f->w.data != NULL; }
static inline int64_t nmlp_factors_rows(const nmlp_factors *f) { return f->w.data ? f->w.shape[0] : f->u.shape[0]; }
static inline int64_t nmlp_factors_cols(const nmlp_factors *f) { return f->w.data ? f->w.shape[1] : f->v.shape[1]; }
/* 0 when dense. */
static inline int64_t nmlp_factors_rank(const nmlp_factors *f) { return f->w.data ? 0 : f->u.shape[1]; }

static inline nmlp_dtype nmlp_factors_dtype(const nmlp_factors *f) { return f->w.data ? f->w.dtype : f->u.dtype; }

#endif
