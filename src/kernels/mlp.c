/* Gated MLP as a chain of linears. */
#include <math.h>

#include "base/mem.h"
#include "kernels/kernels_int.h"

enum { ELEMS_PER_TASK = 4096 };

/* W X, dense (first only) or second(first(X)). */
struct projection {
    nmlp_linear *first;
    nmlp_linear *second; /* NULL: dense */
    int64_t rank;
    int64_t n_in;
    int64_t n_out;
};

struct nmlp_mlp {
    struct projection gate;
    struct projection up;
    struct projection down;
};

static nmlp_status create_projection(struct projection *p, const nmlp_kernels *kernels, const nmlp_factors *f,
                                     const char *name, nmlp_pool *pool, nmlp_err *err) {
    nmlp_status st;
    if (!f->w.data == !f->u.data)
        return nmlp_fail(err, NMLP_E_ARG, "%s: exactly one of a dense weight and factors is expected", name);
    if (f->w.data) {
        *p = (struct projection){.n_in = f->w.shape[1], .n_out = f->w.shape[0]};
        st = nmlp_linear_create(&p->first, kernels, &f->w, NULL, pool, err);
    } else {
        *p = (struct projection){.n_in = f->v.shape[1], .n_out = f->u.shape[0], .rank = f->v.shape[0]};
        if (!f->v.data || f->u.shape[1] != f->v.shape[0])
            return nmlp_fail(err, NMLP_E_SHAPE, "%s: u has %lld columns, v has %lld rows", name,
                             (long long)f->u.shape[1], f->v.data ? (long long)f->v.shape[0] : 0LL);
        st = nmlp_linear_create(&p->first, kernels, &f->v, NULL, pool, err);
        if (st == NMLP_OK) st = nmlp_linear_create(&p->second, kernels, &f->u, NULL, pool, err);
    }
    if (st != NMLP_OK) nmlp_fail_context(err, "%s", name);
    return st;
}

static nmlp_status check_shapes(const nmlp_mlp *mlp, nmlp_err *err) {
    if (mlp->gate.n_in != mlp->up.n_in || mlp->gate.n_out != mlp->up.n_out || mlp->down.n_in != mlp->gate.n_out)
        return nmlp_fail(err, NMLP_E_SHAPE, "gate [%lld,%lld], up [%lld,%lld] and down [%lld,%lld] do not fit together",
                         (long long)mlp->gate.n_out, (long long)mlp->gate.n_in, (long long)mlp->up.n_out,
                         (long long)mlp->up.n_in, (long long)mlp->down.n_out, (long long)mlp->down.n_in);
    return NMLP_OK;
}

nmlp_status nmlp_mlp_create(nmlp_mlp **out, const nmlp_kernels *kernels, const nmlp_mlp_desc *desc, nmlp_pool *pool,
                            nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_mlp *mlp = nmlp_mem_new(1, sizeof *mlp, err);
    if (!mlp) return NMLP_E_NOMEM;
    NMLP_TRY(create_projection(&mlp->gate, kernels, &desc->gate, "gate", pool, err));
    NMLP_TRY(create_projection(&mlp->up, kernels, &desc->up, "up", pool, err));
    NMLP_TRY(create_projection(&mlp->down, kernels, &desc->down, "down", pool, err));
    NMLP_TRY(check_shapes(mlp, err));
    *out = mlp;
    mlp = NULL;
out:
    nmlp_mlp_destroy(mlp);
    return st;
}

static void destroy_projection(struct projection *p) {
    nmlp_linear_destroy(p->first);
    nmlp_linear_destroy(p->second);
}

void nmlp_mlp_destroy(nmlp_mlp *mlp) {
    if (!mlp) return;
    destroy_projection(&mlp->gate);
    destroy_projection(&mlp->up);
    destroy_projection(&mlp->down);
    nmlp_mem_free(mlp);
}

bool nmlp_mlp_owns_weights(const nmlp_mlp *mlp) {
    (void)mlp;
    return false;
}

static size_t max2(size_t a, size_t b) { return a > b ? a : b; }

static size_t projection_workspace(const struct projection *p, int64_t s, int n_threads) {
    size_t bytes = nmlp_linear_workspace_bytes(p->first, s, n_threads);
    return p->second ? max2(bytes, nmlp_linear_workspace_bytes(p->second, s, n_threads)) : bytes;
}

/* Pieces of the workspace. */
struct pieces {
    float *gate;  /* [S,I] */
    float *up;    /* [S,I] */
    float *inner; /* [S, largest rank] */
    void *linear; /* for the linears, one at a time */
};

static size_t carve_pieces(struct pieces *pieces, const nmlp_mlp *mlp, int64_t s, int n_threads, void *workspace) {
    nmlp_carver carver = {.base = workspace};
    size_t act_bytes = (size_t)(s * mlp->gate.n_out) * sizeof(float);
    size_t rank = max2(max2((size_t)mlp->gate.rank, (size_t)mlp->up.rank), (size_t)mlp->down.rank);
    size_t linear = max2(projection_workspace(&mlp->gate, s, n_threads), projection_workspace(&mlp->up, s, n_threads));
    pieces->gate = nmlp_carve(&carver, act_bytes);
    pieces->up = nmlp_carve(&carver, act_bytes);
    pieces->inner = nmlp_carve(&carver, rank * (size_t)s * sizeof(float));
    pieces->linear = nmlp_carve(&carver, max2(linear, projection_workspace(&mlp->down, s, n_threads)));
    return carver.used_bytes;
}

size_t nmlp_mlp_workspace_bytes(const nmlp_mlp *mlp, int64_t s, int n_threads) {
    struct pieces pieces;
    return carve_pieces(&pieces, mlp, s, n_threads, NULL);
}

size_t nmlp_mlp_observed_workspace_bytes(const nmlp_mlp *mlp, int64_t s, int n_threads) {
    return nmlp_mlp_workspace_bytes(mlp, s, n_threads);
}

static void project(const struct projection *p, float *y, const float *x, int64_t s, const struct pieces *pieces,
                    nmlp_pool *pool) {
    if (!p->second) {
        nmlp_linear_run(p->first, y, x, s, pieces->linear, pool);
        return;
    }
    nmlp_linear_run(p->first, pieces->inner, x, s, pieces->linear, pool);
    nmlp_linear_run(p->second, y, pieces->inner, s, pieces->linear, pool);
}

struct activation {
    float *act;
    const float *gate;
    const float *up;
};

static void activate(void *arg, int64_t begin, int64_t end, int thread) {
    const struct activation *a = arg;
    (void)thread;
    for (int64_t i = begin; i < end; i++) a->act[i] = a->gate[i] / (1.0f + expf(-a->gate[i])) * a->up[i];
}

void nmlp_mlp_run_observed(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, float *gate, float *up, float *act,
                           void *workspace, nmlp_pool *pool) {
    struct pieces pieces;
    carve_pieces(&pieces, mlp, s, nmlp_pool_threads(pool), workspace);
    if (!gate) gate = pieces.gate;
    if (!up) up = pieces.up;
    if (!act) act = pieces.gate; /* free, or the gate itself, element by element */
    project(&mlp->gate, gate, x, s, &pieces, pool);
    project(&mlp->up, up, x, s, &pieces, pool);
    struct activation activation = {.act = act, .gate = gate, .up = up};
    nmlp_pool_for(pool, s * mlp->gate.n_out, ELEMS_PER_TASK, activate, &activation);
    project(&mlp->down, y, act, s, &pieces, pool);
}

void nmlp_mlp_run(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, void *workspace, nmlp_pool *pool) {
    nmlp_mlp_run_observed(mlp, y, x, s, NULL, NULL, NULL, workspace, pool);
}
