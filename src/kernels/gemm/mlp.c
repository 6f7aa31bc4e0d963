/* Making a gated MLP: checks the shapes and packs the weights. */
#include "kernels/gemm/mlp_internal.h"

#include "base/mem.h"

static nmlp_status check_factors(const nmlp_factors *f, nmlp_err *err) {
    char u[NMLP_SHAPE_TEXT_MAX];
    char v[NMLP_SHAPE_TEXT_MAX];
    if (!f->w.data == !f->u.data)
        return nmlp_fail(err, NMLP_E_ARG, "exactly one of a dense weight and factors is expected");
    if (f->w.data) return NMLP_OK;
    if (f->v.data && f->u.n_dims == 2 && f->v.n_dims == 2 && f->u.shape[1] == f->v.shape[0]) return NMLP_OK;
    nmlp_shape_text(u, f->u.shape, f->u.n_dims);
    nmlp_shape_text(v, f->v.shape, f->v.data ? f->v.n_dims : 0);
    return nmlp_fail(err, NMLP_E_SHAPE, "factors u %s and v %s do not fit, expected [N,r] and [r,K]", u, v);
}

/* `basis` is the gate's v where the two share it, else NULL. */
static nmlp_status create_projection(nmlp_projection *p, const nmlp_kernels *kernels, const nmlp_factors *f,
                                     const nmlp_gemm_weight *basis, nmlp_pool *pool, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_factors(f, err));
    if (f->w.data) return nmlp_gemm_weight_init(&p->u, kernels, &f->w, pool, err);
    p->v = basis;
    if (!basis) {
        NMLP_RETURN_IF_FAILED(nmlp_gemm_weight_init(&p->own_v, kernels, &f->v, pool, err));
        p->v = &p->own_v;
    }
    return nmlp_gemm_weight_init(&p->u, kernels, &f->u, pool, err);
}

static nmlp_status check_shapes(nmlp_mlp *mlp, nmlp_err *err) {
    const nmlp_projection *gate = &mlp->gate;
    const nmlp_projection *up = &mlp->up;
    const nmlp_projection *down = &mlp->down;
    mlp->hidden = nmlp_projection_inputs(gate);
    mlp->inner = gate->u.n;
    if (nmlp_projection_inputs(up) == mlp->hidden && up->u.n == mlp->inner &&
        nmlp_projection_inputs(down) == mlp->inner && down->u.n == mlp->hidden)
        return NMLP_OK;
    return nmlp_fail(err, NMLP_E_SHAPE, "gate [%lld,%lld], up [%lld,%lld] and down [%lld,%lld] do not fit together",
                     (long long)gate->u.n, (long long)nmlp_projection_inputs(gate), (long long)up->u.n,
                     (long long)nmlp_projection_inputs(up), (long long)down->u.n,
                     (long long)nmlp_projection_inputs(down));
}

nmlp_status nmlp_mlp_create(nmlp_mlp **out, const nmlp_kernels *kernels, const nmlp_mlp_desc *desc, nmlp_pool *pool,
                            nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const char *where = "gate";
    *out = NULL;
    nmlp_mlp *mlp = nmlp_mem_new(1, sizeof *mlp, err);
    if (!mlp) return NMLP_E_NOMEM;
    mlp->kernels = kernels;
    mlp->activation = desc->activation;
    NMLP_TRY(create_projection(&mlp->gate, kernels, &desc->gate, NULL, pool, err));
    where = "up";
    bool shared = desc->gate.v.data && desc->gate.v.data == desc->up.v.data;
    NMLP_TRY(create_projection(&mlp->up, kernels, &desc->up, shared ? mlp->gate.v : NULL, pool, err));
    where = "down";
    NMLP_TRY(create_projection(&mlp->down, kernels, &desc->down, NULL, pool, err));
    where = "mlp";
    NMLP_TRY(check_shapes(mlp, err));
    *out = mlp;
    mlp = NULL;
out:
    if (st != NMLP_OK) nmlp_fail_context(err, "%s", where);
    nmlp_mlp_destroy(mlp);
    return st;
}

static void destroy_projection(nmlp_projection *p) {
    nmlp_gemm_weight_fini(&p->u);
    nmlp_gemm_weight_fini(&p->own_v);
}

void nmlp_mlp_destroy(nmlp_mlp *mlp) {
    if (!mlp) return;
    destroy_projection(&mlp->gate);
    destroy_projection(&mlp->up);
    destroy_projection(&mlp->down);
    nmlp_mem_free(mlp);
}

bool nmlp_mlp_owns_weights(const nmlp_mlp *mlp) { return mlp->gate.u.strips != NULL; }

static bool projection_is_finite(const nmlp_projection *p) { return p->u.finite && (!p->v || p->v->finite); }

bool nmlp_mlp_is_finite(const nmlp_mlp *mlp) {
    return projection_is_finite(&mlp->gate) && projection_is_finite(&mlp->up) && projection_is_finite(&mlp->down);
}
