/* Fitting the matrices of one layer again: statistics in, variants out. */
#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "compress/calibrate/gram.h"
#include "compress/refit/refit_internal.h"
#include "compress/refit/refit_solve.h"

enum { BATCH = 4096 };

void nmlp_refit_variant_fini(nmlp_refit_variant *v) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        nmlp_nested_fini(&v->nested[i]);
        nmlp_mem_free(v->u[i]);
    }
    *v = (nmlp_refit_variant){0};
}

nmlp_status nmlp_refit_run_mlp(const nmlp_refit_layer *l, const nmlp_mlp_desc *desc, const float *z, int64_t s,
                               float *out, float *act, nmlp_err *err) {
    nmlp_mlp *mlp = NULL;
    nmlp_status st = NMLP_OK;
    void *workspace = NULL;
    nmlp_mlp_desc made = *desc;
    int n_threads = nmlp_pool_threads(l->pool);
    int64_t step = nmlp_min(l->context, s);
    nmlp_compress_work before = nmlp_compress_times_enter(l->r->times, NMLP_COMPRESS_WORK_PACKING);
    made.activation = nmlp_engine_model(l->r->engine)->config.activation;
    NMLP_TRY(nmlp_mlp_create(&mlp, l->kernels, &made, l->pool, err));
    size_t bytes =
        act ? nmlp_mlp_observed_workspace_bytes(mlp, step, n_threads) : nmlp_mlp_workspace_bytes(mlp, step, n_threads);
    workspace = nmlp_mem_new(bytes, 1, err);
    if (!workspace) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    nmlp_compress_times_enter(l->r->times, NMLP_COMPRESS_WORK_FORWARD);
    for (int64_t t = 0; t < s; t += step) {
        int64_t n = nmlp_min(step, s - t);
        if (act) {
            nmlp_mlp_run_observed(mlp, out + t * l->hidden, z + t * l->hidden, n, NULL, NULL, act + t * l->intermediate,
                                  workspace, l->pool);
        } else {
            nmlp_mlp_run(mlp, out + t * l->hidden, z + t * l->hidden, n, workspace, l->pool);
        }
    }
out:
    nmlp_mem_free(workspace);
    nmlp_mlp_destroy(mlp);
    nmlp_compress_times_enter(l->r->times, before);
    return st;
}

nmlp_status nmlp_refit_sum_heldout(const nmlp_window_share *share, const double *values, int64_t n_heldout, double *sum,
                                   nmlp_err *err) {
    int64_t n = share ? share->heldout_tokens : n_heldout;
    int64_t first = share ? nmlp_window_share_first(share, true, nmlp_group_rank(share->group)) : 0;
    double *all = nmlp_mem_new((size_t)n + 1, sizeof *all, err);
    if (!all) return NMLP_E_NOMEM;
    memcpy(all + first, values, (size_t)n_heldout * sizeof *all);
    nmlp_status st = share ? nmlp_window_share_gather(share, all, sizeof *all, true, err) : NMLP_OK;
    *sum = 0;
    for (int64_t t = 0; t < n; t++) *sum += all[t];
    nmlp_mem_free(all);
    return st;
}

nmlp_status nmlp_refit_error(const nmlp_refit_layer *l, const nmlp_mlp_desc *desc, double *error, nmlp_err *err) {
    int64_t h = l->hidden;
    nmlp_status st = NMLP_OK;
    float *out = nmlp_mem_new((size_t)(l->n_heldout * h) + 1, sizeof *out, err);
    double *values = nmlp_mem_new((size_t)l->n_heldout + 1, sizeof *values, err);
    if (!out || !values) st = NMLP_E_NOMEM;
    if (st == NMLP_OK && l->n_heldout > 0)
        st = nmlp_refit_run_mlp(l, desc, l->z + l->n_calib * h, l->n_heldout, out, NULL, err);
    for (int64_t t = 0; t < l->n_heldout && st == NMLP_OK; t++) {
        const float *target = l->target + (l->n_calib + t) * h;
        double sum = 0;
        for (int64_t i = 0; i < h; i++) {
            double d = (double)target[i] - (double)out[t * h + i];
            sum += d * d;
        }
        values[t] = sum * (double)l->weights[l->n_calib + t] * (double)l->weights[l->n_calib + t];
    }
    if (st == NMLP_OK) st = nmlp_refit_sum_heldout(l->share, values, l->n_heldout, error, err);
    nmlp_mem_free(values);
    nmlp_mem_free(out);
    return st;
}

static void scale_rows(float *dst, const float *src, const float *weights, int64_t s, int64_t n) {
    for (int64_t t = 0; t < s; t++)
        for (int64_t i = 0; i < n; i++) dst[t * n + i] = weights[t] * src[t * n + i];
}

static void divide(double *a, int64_t n, int64_t by) {
    for (int64_t i = 0; i < n; i++) a[i] /= (double)by;
}

/* Gram matrix and cross products of some tokens of all processes; each adds blocks of its own. */
struct moments {
    double *gram;  /* [n,n] */
    double *cross; /* [m,n] */
    int64_t m, n;
};

static nmlp_status add_moments(const nmlp_refit_layer *l, const struct moments *k, const float *y, const float *x,
                               int64_t s, nmlp_err *err) {
    const nmlp_process_group *group = nmlp_refit_group(l);
    NMLP_RETURN_IF_FAILED(nmlp_gram_add_blocks(l->kernels, l->pool, group, k->gram, x, x, s, k->n, k->n, true, err));
    return nmlp_gram_add_blocks(l->kernels, l->pool, group, k->cross, y, x, s, k->m, k->n, false, err);
}

/* The process that solves gets the means. */
static nmlp_status collect_moments(const nmlp_refit_layer *l, const struct moments *k, nmlp_err *err) {
    const nmlp_process_group *group = nmlp_refit_group(l);
    NMLP_RETURN_IF_FAILED(nmlp_gram_collect(l->kernels, l->pool, group, k->gram, k->n, k->n, true, l->owner, err));
    NMLP_RETURN_IF_FAILED(nmlp_gram_collect(l->kernels, l->pool, group, k->cross, k->m, k->n, false, l->owner, err));
    if (!nmlp_refit_solves(l)) return NMLP_OK;
    divide(k->gram, k->n * k->n, l->calib_tokens);
    divide(k->cross, k->m * k->n, l->calib_tokens);
    return NMLP_OK;
}

/* Of calibration tokens t..t+n-1 of all processes, those of this one. */
static nmlp_own_tokens own_tokens(const nmlp_refit_layer *l, int64_t t, int64_t n) {
    return l->share ? nmlp_window_share_own(l->share, t, n) : (nmlp_own_tokens){.own = t, .count = n};
}

static nmlp_status fill_rows(const nmlp_refit_layer *l, float *rows, int64_t width, int64_t t, int64_t n,
                             nmlp_err *err) {
    return l->share ? nmlp_window_share_fill(l->share, rows, width, t, n, err) : NMLP_OK;
}

/* gram [H,H] = mean z z^T, cross [H,H] = mean x z^T over the calibration tokens. */
static nmlp_status input_moments(const nmlp_refit_layer *l, double *gram, double *cross, nmlp_err *err) {
    int64_t h = l->hidden;
    nmlp_status st = NMLP_E_NOMEM;
    struct moments k = {.gram = gram, .cross = cross, .m = h, .n = h};
    if (!l->weighted && nmlp_group_size(nmlp_refit_group(l)) == 1) {
        NMLP_RETURN_IF_FAILED(add_moments(l, &k, l->x, l->z, l->n_calib, err));
        return collect_moments(l, &k, err);
    }
    float *x = nmlp_mem_new((size_t)(BATCH * h), sizeof *x, err);
    float *z = nmlp_mem_new((size_t)(BATCH * h), sizeof *z, err);
    if (!x || !z) goto out;
    for (int64_t t = 0; t < l->calib_tokens; t += BATCH) {
        int64_t n = nmlp_min(BATCH, l->calib_tokens - t);
        nmlp_own_tokens own = own_tokens(l, t, n);
        scale_rows(x + own.at * h, l->x + own.own * h, l->weights + own.own, own.count, h);
        scale_rows(z + own.at * h, l->z + own.own * h, l->weights + own.own, own.count, h);
        NMLP_TRY(fill_rows(l, x, h, t, n, err));
        NMLP_TRY(fill_rows(l, z, h, t, n, err));
        NMLP_TRY(add_moments(l, &k, x, z, n, err));
    }
    st = collect_moments(l, &k, err);
out:
    nmlp_mem_free(x);
    nmlp_mem_free(z);
    return st;
}

static nmlp_factors *factors_of(nmlp_mlp_desc *desc, int i) {
    return i == 0 ? &desc->gate : i == 1 ? &desc->up : &desc->down;
}

/* u of `matrix` from rows first.. of the nested factors that stand behind it. */
static nmlp_status take_factors(nmlp_refit_variant *v, int matrix, const nmlp_nested *nested, int64_t first,
                                int64_t rows, nmlp_pool *pool, nmlp_err *err) {
    v->u[matrix] = nmlp_mem_new((size_t)(rows * nested->rank), nmlp_dtype_bytes(nested->dtype), err);
    if (!v->u[matrix]) return NMLP_E_NOMEM;
    nmlp_nested_u(nested, nested->rank, first, rows, v->u[matrix], pool);
    *factors_of(&v->desc, matrix) =
        (nmlp_factors){.u = nmlp_view_2d(v->u[matrix], nested->dtype, rows, nested->rank),
                       .v = nmlp_view_2d(nested->v, nested->dtype, nested->rank, nested->cols)};
    return NMLP_OK;
}

static nmlp_status pack(nmlp_nested *nested, int64_t rows, int64_t cols, int64_t rank, nmlp_dtype dtype, double *ut,
                        double *v, nmlp_pool *pool, nmlp_err *err) {
    double none[2] = {0};
    *nested = (nmlp_nested){.rows = rows, .cols = cols, .rank = rank, .full = 1, .dtype = dtype};
    return nmlp_nested_pack(nested, ut, v, none, pool, err);
}

/* What the process that solves has packed, for the others. */
static nmlp_status give_nested(const nmlp_refit_layer *l, nmlp_nested *nested, int64_t rows, int64_t cols, int64_t rank,
                               nmlp_dtype dtype, nmlp_err *err) {
    nmlp_nested shape = {.rows = rows, .cols = cols, .rank = rank, .full = 1, .dtype = dtype};
    int64_t bytes = (int64_t)((size_t)(rank * (rows + cols)) * nmlp_dtype_bytes(dtype) + 2 * sizeof(double));
    if (!nmlp_refit_solves(l)) {
        *nested = shape;
        NMLP_RETURN_IF_FAILED(nmlp_nested_alloc(nested, &bytes, err));
    }
    return nmlp_group_give(nmlp_refit_group(l), nested->owned, bytes, l->owner, err);
}

static nmlp_status solve_tall(const nmlp_refit_layer *l, nmlp_refit_tall *problem, int matrix, nmlp_refit_variant *out,
                              nmlp_err *err) {
    int64_t rows = nmlp_refit_tall_rows(problem), rank = problem->rank * l->r->slices;
    nmlp_status st = NMLP_E_NOMEM;
    nmlp_nested *nested = &out->nested[matrix];
    nmlp_dtype dtype = l->dense[matrix].w.dtype;
    double *ut = NULL, *v = NULL;
    if (!nmlp_refit_solves(l)) goto give;
    ut = nmlp_mem_new((size_t)(rank * rows), sizeof *ut, err);
    v = nmlp_mem_new((size_t)(rank * problem->n), sizeof *v, err);
    if (!ut || !v) goto out;
    if (l->r->slices == 1) NMLP_TRY(nmlp_refit_tall_solve(problem, ut, v, l->pool, err));
    for (int64_t s = 0; l->r->slices > 1 && s < l->r->slices; s++)
        NMLP_TRY(nmlp_refit_tall_slice(l, problem, s, ut, v, err));
    NMLP_TRY(pack(nested, rows, problem->n, rank, dtype, ut, v, l->pool, err));
give:
    NMLP_TRY(give_nested(l, nested, rows, problem->n, rank, dtype, err));
    NMLP_TRY(take_factors(out, matrix, nested, 0, problem->rows[0], l->pool, err));
    if (problem->n_matrices == 2)
        NMLP_TRY(take_factors(out, NMLP_MLP_UP, nested, problem->rows[0], problem->rows[1], l->pool, err));
out:
    nmlp_mem_free(ut);
    nmlp_mem_free(v);
    return st;
}

static nmlp_status solve_gate_up(const nmlp_refit_layer *l, nmlp_refit_tall problem, const double *const d[2],
                                 nmlp_refit_variant *out, nmlp_err *err) {
    const nmlp_layer_ranks *ranks = &l->ranks;
    if (ranks->joint) {
        problem.n_matrices = 2;
        problem.rank = ranks->rank[NMLP_MLP_GATE];
        for (int i = 0; i < 2; i++) {
            problem.w[i] = l->w[i];
            problem.views[i] = l->dense[i].w;
            problem.weight[i] = d[i];
        }
        return solve_tall(l, &problem, NMLP_MLP_GATE, out, err);
    }
    for (int i = 0; i < 2; i++) {
        if (ranks->rank[i] == 0) continue;
        problem.n_matrices = 1;
        problem.rank = ranks->rank[i];
        problem.w[0] = l->w[i];
        problem.views[0] = l->dense[i].w;
        problem.weight[0] = d[i];
        NMLP_RETURN_IF_FAILED(solve_tall(l, &problem, i, out, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_refit_gate_up(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, nmlp_refit_variant *out,
                               nmlp_err *err) {
    int64_t h = l->hidden;
    nmlp_status st = NMLP_E_NOMEM;
    double *gram = nmlp_mem_new((size_t)(h * h), sizeof *gram, err);
    double *cross = nmlp_mem_new((size_t)(h * h), sizeof *cross, err);
    *out = (nmlp_refit_variant){.desc = *base};
    if (!gram || !cross) goto out;
    const double *weights[2] = {l->row_weights, l->row_weights ? l->row_weights + l->intermediate : NULL};
    nmlp_compress_work before = nmlp_compress_times_enter(l->r->times, NMLP_COMPRESS_WORK_MOMENTS);
    NMLP_TRY(input_moments(l, gram, cross, err));
    nmlp_compress_times_enter(l->r->times, NMLP_COMPRESS_WORK_PRODUCTS);
    nmlp_refit_tall problem = {.n = h,
                               .rows = {l->intermediate, l->intermediate},
                               .gram = gram,
                               .cross = cross,
                               .ridge = NMLP_REFIT_ANCHOR_FIRST * (double)h / (double)l->calib_tokens,
                               .kernels = l->kernels,
                               .times = l->r->times};
    st = solve_gate_up(l, problem, weights, out, err);
    nmlp_compress_times_enter(l->r->times, before);
out:
    nmlp_mem_free(gram);
    nmlp_mem_free(cross);
    if (st != NMLP_OK) nmlp_refit_variant_fini(out);
    return st;
}

/* gram [I,I] = mean a a^T, cross [H,I] = mean target a^T, a the activations behind gate and up of `base`. */
static nmlp_status inner_moments(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, double *gram, double *cross,
                                 nmlp_err *err) {
    int64_t h = l->hidden;
    int64_t n_in = l->intermediate;
    nmlp_status st = NMLP_E_NOMEM;
    struct moments k = {.gram = gram, .cross = cross, .m = h, .n = n_in};
    /* Windows stay whole: who runs one does not change it. */
    int64_t whole = l->share ? nmlp_max(BATCH / l->context, 1) * l->context : BATCH;
    int64_t batch = nmlp_min(whole, l->calib_tokens);
    float *act = nmlp_mem_new((size_t)(batch * n_in), sizeof *act, err);
    float *out = nmlp_mem_new((size_t)(batch * h), sizeof *out, err);
    if (!act || !out) goto out;
    for (int64_t t = 0; t < l->calib_tokens; t += batch) {
        int64_t n = nmlp_min(batch, l->calib_tokens - t);
        nmlp_own_tokens own = own_tokens(l, t, n);
        float *own_act = act + own.at * n_in, *own_out = out + own.at * h;
        if (own.count > 0) NMLP_TRY(nmlp_refit_run_mlp(l, base, l->z + own.own * h, own.count, own_out, own_act, err));
        scale_rows(own_act, own_act, l->weights + own.own, own.count, n_in);
        scale_rows(own_out, l->target + own.own * h, l->weights + own.own, own.count, h);
        NMLP_TRY(fill_rows(l, act, n_in, t, n, err));
        NMLP_TRY(fill_rows(l, out, h, t, n, err));
        NMLP_TRY(add_moments(l, &k, out, act, n, err));
    }
    st = collect_moments(l, &k, err);
out:
    nmlp_mem_free(act);
    nmlp_mem_free(out);
    return st;
}

static nmlp_status take_dense(const nmlp_refit_layer *l, const double *w, nmlp_refit_variant *out, nmlp_err *err) {
    nmlp_dtype dtype = l->dense[NMLP_MLP_DOWN].w.dtype;
    int64_t n = l->hidden * l->intermediate;
    char *to = nmlp_mem_new((size_t)n, nmlp_dtype_bytes(dtype), err);
    if (!to) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < n && nmlp_refit_solves(l); i++) {
        float value = (float)w[i];
        nmlp_from_f32(to + (size_t)i * nmlp_dtype_bytes(dtype), dtype, &value, 1);
    }
    out->u[NMLP_MLP_DOWN] = to;
    out->desc.down = (nmlp_factors){.w = nmlp_view_2d(to, dtype, l->hidden, l->intermediate)};
    return nmlp_group_give(nmlp_refit_group(l), to, n * (int64_t)nmlp_dtype_bytes(dtype), l->owner, err);
}

/* On the process that solves: ut [rank,H] and v [rank,I], or with rank 0 v [H,I], from the moments. */
static nmlp_status solve_down(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, const struct moments *k, double *ut,
                              double *v, nmlp_err *err) {
    int64_t rank = l->ranks.rank[NMLP_MLP_DOWN];
    nmlp_refit_down problem = {.m = k->m,
                               .n = k->n,
                               .w = l->w[NMLP_MLP_DOWN],
                               .gram = k->gram,
                               .cross = k->cross,
                               .ridge = NMLP_REFIT_ANCHOR_LAST * (double)k->n / (double)l->calib_tokens,
                               .rank = rank};
    return rank > 0 && l->r->slices > 1 ? nmlp_refit_down_slices(l, base, &problem, ut, v, err)
                                        : nmlp_refit_down_solve(&problem, ut, v, l->pool, err);
}

nmlp_status nmlp_refit_down_of(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, nmlp_refit_variant *out,
                               nmlp_err *err) {
    int64_t h = l->hidden, n_in = l->intermediate, rank = l->ranks.rank[NMLP_MLP_DOWN] * l->r->slices;
    nmlp_dtype dtype = l->dense[NMLP_MLP_DOWN].w.dtype;
    nmlp_status st = NMLP_OK;
    nmlp_nested *nested = &out->nested[NMLP_MLP_DOWN];
    *out = (nmlp_refit_variant){.desc = *base};
    struct moments k = {.gram = nmlp_mem_new((size_t)(n_in * n_in), sizeof(double), err),
                        .cross = nmlp_mem_new((size_t)(h * n_in), sizeof(double), err),
                        .m = h,
                        .n = n_in};
    double *ut = nmlp_mem_new((size_t)((rank ? rank : 1) * h), sizeof *ut, err);
    double *v = nmlp_mem_new((size_t)((rank ? rank : h) * n_in), sizeof *v, err);
    if (!k.gram || !k.cross || !ut || !v) NMLP_TRY(NMLP_E_NOMEM);
    nmlp_compress_work before = nmlp_compress_times_enter(l->r->times, NMLP_COMPRESS_WORK_MOMENTS);
    NMLP_TRY(inner_moments(l, base, k.gram, k.cross, err));
    nmlp_compress_times_enter(l->r->times, NMLP_COMPRESS_WORK_PRODUCTS);
    if (nmlp_refit_solves(l)) NMLP_TRY(solve_down(l, base, &k, ut, v, err));
    nmlp_compress_times_enter(l->r->times, before);
    if (rank == 0) {
        NMLP_TRY(take_dense(l, v, out, err));
    } else {
        if (nmlp_refit_solves(l)) NMLP_TRY(pack(nested, h, n_in, rank, dtype, ut, v, l->pool, err));
        NMLP_TRY(give_nested(l, nested, h, n_in, rank, dtype, err));
        NMLP_TRY(take_factors(out, NMLP_MLP_DOWN, nested, 0, h, l->pool, err));
    }
out:
    nmlp_mem_free(k.gram);
    nmlp_mem_free(k.cross);
    nmlp_mem_free(ut);
    nmlp_mem_free(v);
    if (st != NMLP_OK) nmlp_refit_variant_fini(out);
    return st;
}
