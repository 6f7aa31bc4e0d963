/* The gated MLP step by step, every intermediate whole: for calibration. */
#include "kernels/gemm/matmul.h"
#include "kernels/gemm/mlp_internal.h"

struct pieces {
    float *gate;  /* [S,I] */
    float *up;    /* [S,I] */
    float *inner; /* [S, largest rank] */
    void *matmul; /* workspace of one matmul at a time */
};

static size_t matmul_bytes(const nmlp_mlp *mlp, const nmlp_gemm_weight *w, int64_t s, int n_threads, size_t at_least) {
    if (!w) return at_least;
    nmlp_matmul matmul = {.kernels = mlp->kernels, .w = w};
    size_t bytes = nmlp_matmul_workspace_bytes(&matmul, s, n_threads);
    return bytes > at_least ? bytes : at_least;
}

static size_t carve_pieces(struct pieces *pieces, const nmlp_mlp *mlp, int64_t s, int n_threads, void *workspace) {
    const nmlp_projection *projection[] = {&mlp->gate, &mlp->up, &mlp->down};
    nmlp_carver carver = nmlp_carver_of(workspace);
    size_t act_bytes = (size_t)(s * mlp->inner) * sizeof(float);
    size_t matmul = 0;
    int64_t rank = 0;
    for (int i = 0; i < 3; i++) {
        rank = nmlp_max(rank, nmlp_projection_rank(projection[i]));
        matmul = matmul_bytes(mlp, &projection[i]->u, s, n_threads, matmul);
        matmul = matmul_bytes(mlp, projection[i]->v, s, n_threads, matmul);
    }
    pieces->gate = nmlp_carve(&carver, act_bytes);
    pieces->up = nmlp_carve(&carver, act_bytes);
    pieces->inner = nmlp_carve(&carver, (size_t)(s * rank) * sizeof(float));
    pieces->matmul = nmlp_carve(&carver, matmul);
    return carver.used_bytes;
}

size_t nmlp_mlp_observed_workspace_bytes(const nmlp_mlp *mlp, int64_t s, int n_threads) {
    struct pieces pieces;
    return carve_pieces(&pieces, mlp, s, n_threads, NULL);
}

static void project(const nmlp_mlp *mlp, const nmlp_projection *p, float *y, const float *x, int64_t s,
                    const struct pieces *pieces, nmlp_pool *pool) {
    nmlp_matmul u = {.kernels = mlp->kernels, .w = &p->u};
    nmlp_matmul v = {.kernels = mlp->kernels, .w = p->v};
    if (p->v) {
        nmlp_matmul_run(&v, &pieces->inner, 1, x, s, NULL, pieces->matmul, pool);
        x = pieces->inner;
    }
    nmlp_matmul_run(&u, &y, 1, x, s, NULL, pieces->matmul, pool);
}

void nmlp_mlp_run_observed(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, float *gate, float *up, float *act,
                           void *workspace, nmlp_pool *pool) {
    struct pieces pieces;
    carve_pieces(&pieces, mlp, s, nmlp_pool_threads(pool), workspace);
    if (!gate) gate = pieces.gate;
    if (!up) up = pieces.up;
    if (!act) act = pieces.gate; /* free, or the gate itself, element by element */
    project(mlp, &mlp->gate, gate, x, s, &pieces, pool);
    project(mlp, &mlp->up, up, x, s, &pieces, pool);
    nmlp_glu(mlp->kernels, mlp->activation, act, gate, up, s * mlp->inner, pool);
    if (y) project(mlp, &mlp->down, y, act, s, &pieces, pool);
}
