/* The gated MLP's parts, shared by its making, its fused run and its observed run. */
#ifndef NMLP_KERNELS_GEMM_MLP_INTERNAL_H
#define NMLP_KERNELS_GEMM_MLP_INTERNAL_H

#include "kernels/gemm/packed_weight.h"

/* One projection: u (v x) for low rank, or u x with the dense weight in u. */
typedef struct nmlp_projection {
    nmlp_gemm_weight u;
    nmlp_gemm_weight own_v;
    const nmlp_gemm_weight *v; /* own_v, the gate's for a shared basis, or NULL: dense */
} nmlp_projection;

struct nmlp_mlp {
    const nmlp_kernels *kernels;
    nmlp_projection gate;
    nmlp_projection up;
    nmlp_projection down;
    int64_t hidden;
    int64_t inner; /* I */
    nmlp_activation activation;
};

static inline int64_t nmlp_projection_rank(const nmlp_projection *p) { return p->v ? p->v->n : 0; }
static inline int64_t nmlp_projection_inputs(const nmlp_projection *p) { return p->v ? p->v->k : p->u.k; }
static inline bool nmlp_mlp_shares_basis(const nmlp_mlp *mlp) { return mlp->gate.v && mlp->gate.v == mlp->up.v; }

#endif
