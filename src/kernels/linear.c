#include "kernels/linear.h"

#include "base/mem.h"
#include "kernels/plan.h"
#include "kernels/sinks.h"

struct nmlp_linear {
    const nmlp_kernels *kernels;
    nmlp_matrix weight;
    float *bias; /* [N] or NULL */
};

/* ---- one matmul over blocks of rows ---- */

struct run {
    const nmlp_matmul *matmul;
    nmlp_plan plan;
    nmlp_share share;
    nmlp_tiles x_tiles[2]; /* of this block of rows and the next */
    char *scratch;         /* per thread */
    size_t scratch_bytes;
    nmlp_pool *pool;
    float *y;
    const float *x;
    int64_t s;
};

static size_t carve_run(struct run *run, const nmlp_matmul *matmul, int64_t s, int n_threads, void *workspace) {
    nmlp_carver carver = nmlp_carver_of(workspace);
    nmlp_carver scratch = {0};
    run->matmul = matmul;
    run->s = s;
    run->plan = nmlp_plan_make(matmul->kernels, nmlp_caches_get(), s, matmul->w->k, 0);
    run->share = nmlp_share_carve(&carver, n_threads);
    for (int i = 0; i < 2; i++)
        run->x_tiles[i] = nmlp_tiles_carve(&carver, run->plan.gemm, run->plan.rows_cap, matmul->w->k);
    nmlp_scratch_carve(&scratch, &run->plan);
    run->scratch_bytes = scratch.used_bytes;
    run->scratch = nmlp_carve(&carver, run->scratch_bytes * (size_t)n_threads);
    return carver.used_bytes;
}

static void run_block(const struct run *run, int64_t first, int64_t parity, nmlp_worker *worker,
                      const nmlp_scratch *scratch) {
    const nmlp_matmul *m = run->matmul;
    const nmlp_tiles *tiles = &run->x_tiles[parity];
    int64_t rows = nmlp_min(run->plan.rows, run->s - first);
    nmlp_rows_sink sink = {.vec = m->kernels->vec, .y = run->y + first * m->w->n, .bias = m->bias, .n = m->w->n};
    nmlp_stage stage = {
        .gemm = run->plan.gemm,
        .product = {{.w = m->w, .a = *tiles, .k = m->w->k_padded}},
        .n_products = 1,
        .rows = rows,
        .kc = run->plan.kc,
        .widen = run->plan.widen,
        .stream = run->plan.stream,
        .sink = nmlp_sink_rows,
        .sink_ctx = &sink,
    };
    nmlp_pack_work(tiles, m->kernels->vec, run->x + first * m->w->k, rows, m->w->k, worker);
    nmlp_pool_barrier(run->pool);
    nmlp_stage_work(&stage, worker, scratch);
}

static void run_job(void *arg, int thread, int n_threads) {
    const struct run *run = arg;
    (void)n_threads;
    nmlp_worker worker = {.share = &run->share, .thread = thread};
    nmlp_carver carver = {.base = run->scratch + run->scratch_bytes * (size_t)thread};
    nmlp_scratch scratch = nmlp_scratch_carve(&carver, &run->plan);
    if (run->plan.gemm->begin) run->plan.gemm->begin();
    for (int64_t first = 0, at = 0; first < run->s; first += run->plan.rows, at++)
        run_block(run, first, at & 1, &worker, &scratch);
    if (run->plan.gemm->end) run->plan.gemm->end();
}

size_t nmlp_matmul_workspace_bytes(const nmlp_matmul *matmul, int64_t s, int n_threads) {
    int64_t worst[NMLP_PLAN_WAYS];
    struct run run;
    size_t bytes = 0;
    nmlp_plan_worst(matmul->kernels, s, worst);
    for (int i = 0; i < NMLP_PLAN_WAYS; i++) {
        size_t need = carve_run(&run, matmul, worst[i], n_threads, NULL);
        if (need > bytes) bytes = need;
    }
    return bytes;
}

void nmlp_matmul_run(const nmlp_matmul *matmul, float *y, const float *x, int64_t s, void *workspace, nmlp_pool *pool) {
    struct run run = {0};
    carve_run(&run, matmul, s, nmlp_pool_threads(pool), workspace);
    run.pool = pool;
    run.y = y;
    run.x = x;
    nmlp_share_begin(&run.share);
    nmlp_pool_run(pool, run_job, &run);
}

/* ---- the public object ---- */

static nmlp_status copy_bias(nmlp_linear *linear, const nmlp_view *bias, nmlp_err *err) {
    int64_t n = linear->weight.n;
    if (!bias || !bias->data) return NMLP_OK;
    if (nmlp_view_elems(bias) != n)
        return nmlp_fail(err, NMLP_E_SHAPE, "bias has %lld elements, the weight has %lld rows",
                         (long long)nmlp_view_elems(bias), (long long)n);
    linear->bias = nmlp_mem_new((size_t)n, sizeof *linear->bias, err);
    if (!linear->bias) return NMLP_E_NOMEM;
    nmlp_to_f32(linear->bias, bias->data, bias->dtype, (size_t)n);
    return NMLP_OK;
}

nmlp_status nmlp_linear_create(nmlp_linear **out, const nmlp_kernels *kernels, const nmlp_view *weight,
                               const nmlp_view *bias, nmlp_pool *pool, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_linear *linear = nmlp_mem_new(1, sizeof *linear, err);
    if (!linear) return NMLP_E_NOMEM;
    linear->kernels = kernels;
    NMLP_TRY(nmlp_matrix_init(&linear->weight, kernels, weight, pool, err));
    NMLP_TRY(copy_bias(linear, bias, err));
    *out = linear;
    linear = NULL;
out:
    nmlp_linear_destroy(linear);
    return st;
}

void nmlp_linear_destroy(nmlp_linear *linear) {
    if (!linear) return;
    nmlp_matrix_fini(&linear->weight);
    nmlp_mem_free(linear->bias);
    nmlp_mem_free(linear);
}

bool nmlp_linear_owns_weight(const nmlp_linear *linear) { return linear->weight.strips != NULL; }

bool nmlp_linear_is_finite(const nmlp_linear *linear) { return linear->weight.finite; }

static nmlp_matmul matmul_of(const nmlp_linear *linear) {
    return (nmlp_matmul){.kernels = linear->kernels, .w = &linear->weight, .bias = linear->bias};
}

size_t nmlp_linear_workspace_bytes(const nmlp_linear *linear, int64_t s, int n_threads) {
    nmlp_matmul matmul = matmul_of(linear);
    return nmlp_matmul_workspace_bytes(&matmul, s, n_threads);
}

void nmlp_linear_run(const nmlp_linear *linear, float *y, const float *x, int64_t s, void *workspace, nmlp_pool *pool) {
    nmlp_matmul matmul = matmul_of(linear);
    nmlp_matmul_run(&matmul, y, x, s, workspace, pool);
}
