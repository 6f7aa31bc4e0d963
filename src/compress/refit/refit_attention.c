/* Fitting an attention again: q, k and v to what the dense ones make of their own inputs, then o to what brings the
 * residual stream back to the dense one's. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compress/calibrate/gram.h"
#include "compress/factor/products.h"
#include "compress/refit/refit_internal.h"

/* A layer some of whose attention matrices were fitted again. */
struct variant {
    nmlp_layer layer;
    nmlp_nested nested[NMLP_ATTENTION_MATRICES]; /* behind the v of refitted matrices */
    void *u[NMLP_ATTENTION_MATRICES];            /* behind their u, or a refitted dense matrix */
};

struct fit {
    nmlp_refit_pass *p;
    const nmlp_block *block;
    const nmlp_layer *dense;
    const nmlp_layer_ranks *ranks;
    const double *row_weights; /* of q, k and v one after the other; NULL: ones */
    int64_t n_calib, n_tokens;
    nmlp_hidden_states goal;  /* the dense stream behind the attention */
    nmlp_hidden_states trial; /* the compressed one, with what is installed */
    float *mixed;             /* [T,Q] of the last trial */
    double *w[NMLP_ATTENTION_MATRICES];
    nmlp_arena arena;
};

static void variant_fini(struct variant *v) {
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
        nmlp_nested_fini(&v->nested[i]);
        nmlp_mem_free(v->u[i]);
    }
    *v = (struct variant){0};
}

static nmlp_engine *engine_of(const struct fit *f) { return f->p->r->engine; }
static nmlp_pool *pool_of(const struct fit *f) { return nmlp_engine_pool(f->p->r->engine); }

/* A stream with memory of its own, in front of the layer like `from`. */
static nmlp_status copy_stream(struct fit *f, nmlp_hidden_states *to, const nmlp_hidden_states *from, nmlp_err *err) {
    size_t elems = (size_t)(f->n_tokens * from->hidden);
    *to = *from;
    to->rows = nmlp_arena_new(&f->arena, elems, sizeof *to->rows, err);
    if (!to->rows) return NMLP_E_NOMEM;
    memcpy(to->rows, from->rows, elems * sizeof *to->rows);
    return NMLP_OK;
}

static nmlp_status fit_open(struct fit *f, nmlp_refit_pass *p, int64_t block, nmlp_err *err) {
    const nmlp_refit_job *r = p->r;
    const nmlp_model *m = nmlp_engine_model(r->engine);
    *f = (struct fit){.p = p,
                      .block = &r->blocks[block],
                      .dense = &m->layers[r->blocks[block].layer],
                      .ranks = &r->ranks[block],
                      .row_weights = r->factor_files[block].row_weights,
                      .n_calib = nmlp_calib_windows_calib_tokens(&r->share->own),
                      .n_tokens = nmlp_calib_windows_tokens(&r->share->own)};
    nmlp_arena_init(&f->arena);
    int64_t q_dim = f->block->cols[f->block->n_first];
    f->mixed = nmlp_arena_new(&f->arena, (size_t)(f->n_tokens * q_dim), sizeof *f->mixed, err);
    if (!f->mixed) return NMLP_E_NOMEM;
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
        size_t elems = (size_t)(f->block->rows[i] * f->block->cols[i]);
        f->w[i] = nmlp_arena_new(&f->arena, elems, sizeof(double), err);
        if (!f->w[i]) return NMLP_E_NOMEM;
        nmlp_widen(pool_of(f), f->w[i], &f->dense->attention[i].w);
    }
    NMLP_RETURN_IF_FAILED(copy_stream(f, &f->goal, &p->dense, err));
    return copy_stream(f, &f->trial, &p->compressed, err);
}

/* The compressed stream through another attention: f->trial, f->mixed and pass->z; error on held-out tokens. */
static nmlp_status run_trial(struct fit *f, const nmlp_layer *attention, double *error, nmlp_err *err) {
    nmlp_refit_pass *p = f->p;
    int64_t h = p->dense.hidden, layer = f->block->layer;
    nmlp_layer_taps taps = {.x = p->y, .attention_x = p->z, .attention_mixed = f->mixed};
    memcpy(f->trial.rows, p->compressed.rows, (size_t)(f->n_tokens * h) * sizeof *f->trial.rows);
    nmlp_hidden_states_progress silent = {.stage = "refitting", .total = 1};
    NMLP_RETURN_IF_FAILED(nmlp_engine_set_attention(engine_of(f), layer, attention, err));
    nmlp_status st = nmlp_hidden_states_run_attention(&f->trial, engine_of(f), layer, &taps, &silent, err);
    (void)nmlp_engine_set_attention(engine_of(f), layer, NULL, NULL);
    *error = 0;
    for (int64_t t = f->n_calib; t < f->n_tokens && st == NMLP_OK; t++) {
        double sum = 0;
        for (int64_t i = t * h; i < (t + 1) * h; i++) {
            double d = (double)f->goal.rows[i] - (double)f->trial.rows[i];
            sum += d * d;
        }
        *error += sum * (double)p->weights[t] * (double)p->weights[t];
    }
    return st;
}

static void scale_rows(float *rows, const float *weights, int64_t s, int64_t n) {
    for (int64_t t = 0; t < s; t++)
        for (int64_t i = 0; i < n; i++) rows[t * n + i] *= weights[t];
}

static void divide(double *a, int64_t n, int64_t by) {
    for (int64_t i = 0; i < n; i++) a[i] /= (double)by;
}

/* u of matrix i from rows first.. of nested factors. */
static nmlp_status take_factors(struct fit *f, struct variant *v, int i, const nmlp_nested *n, int64_t first,
                                nmlp_err *err) {
    int64_t rows = f->block->rows[i];
    v->u[i] = nmlp_mem_new((size_t)(rows * n->rank), nmlp_dtype_bytes(n->dtype), err);
    if (!v->u[i]) return NMLP_E_NOMEM;
    nmlp_nested_u(n, n->rank, first, rows, v->u[i], pool_of(f));
    v->layer.attention[i] = (nmlp_factors){.u = nmlp_view_2d(v->u[i], n->dtype, rows, n->rank),
                                           .v = nmlp_view_2d(n->v, n->dtype, n->rank, n->cols)};
    return NMLP_OK;
}

static nmlp_status pack(struct fit *f, nmlp_nested *n, int64_t rows, int64_t cols, int64_t rank, double *ut, double *v,
                        nmlp_err *err) {
    double none[2] = {0};
    *n = (nmlp_nested){.rows = rows, .cols = cols, .rank = rank, .full = 1, .dtype = f->dense->attention[0].w.dtype};
    return nmlp_nested_pack(n, ut, v, none, pool_of(f), err);
}

/* Matrices first..first+n-1 with one v. */
static nmlp_status solve_first(struct fit *f, nmlp_refit_tall problem, int first, int n, struct variant *out,
                               nmlp_err *err) {
    nmlp_status st = NMLP_E_NOMEM;
    int64_t at = 0;
    problem.n_matrices = n;
    problem.rank = f->ranks->rank[first];
    for (int k = 0; k < first; k++) at += f->block->rows[k];
    for (int i = 0; i < n; i++) {
        problem.rows[i] = f->block->rows[first + i];
        problem.w[i] = f->w[first + i];
        problem.views[i] = f->dense->attention[first + i].w;
        problem.weight[i] = f->row_weights ? f->row_weights + at : NULL;
        at += problem.rows[i];
    }
    int64_t rows = nmlp_refit_tall_rows(&problem);
    double *ut = nmlp_mem_new((size_t)(problem.rank * rows), sizeof *ut, err);
    double *v = nmlp_mem_new((size_t)(problem.rank * problem.n), sizeof *v, err);
    if (!ut || !v) goto out;
    NMLP_TRY(nmlp_refit_tall_solve(&problem, ut, v, pool_of(f), err));
    NMLP_TRY(pack(f, &out->nested[first], rows, problem.n, problem.rank, ut, v, err));
    for (int64_t i = 0, row = 0; i < n; row += problem.rows[i++])
        NMLP_TRY(take_factors(f, out, first + (int)i, &out->nested[first], row, err));
out:
    nmlp_mem_free(ut);
    nmlp_mem_free(v);
    return st;
}

/* q, k and v by the inputs of the last trial (pass->z) and the dense ones (pass->x), which are weighted in place. */
static nmlp_status fit_first(struct fit *f, const nmlp_layer *base, struct variant *out, nmlp_err *err) {
    nmlp_refit_pass *p = f->p;
    int64_t h = p->dense.hidden;
    nmlp_status st = NMLP_E_NOMEM;
    *out = (struct variant){.layer = *base};
    double *gram = nmlp_mem_new((size_t)(h * h), sizeof *gram, err);
    double *cross = nmlp_mem_new((size_t)(h * h), sizeof *cross, err);
    if (!gram || !cross) goto out;
    if (p->r->token_weights) {
        scale_rows(p->x, p->weights, f->n_calib, h);
        scale_rows(p->z, p->weights, f->n_calib, h);
    }
    NMLP_TRY(nmlp_gram_add(p->kernels, pool_of(f), gram, p->z, f->n_calib, h, err));
    NMLP_TRY(nmlp_gram_add_cross(p->kernels, pool_of(f), cross, p->x, p->z, f->n_calib, h, h, err));
    divide(gram, h * h, f->n_calib);
    divide(cross, h * h, f->n_calib);
    nmlp_refit_tall problem = {.n = h,
                               .gram = gram,
                               .cross = cross,
                               .ridge = NMLP_REFIT_ANCHOR_FIRST * (double)h / (double)f->n_calib,
                               .kernels = p->kernels,
                               .times = p->r->times};
    if (f->ranks->joint) NMLP_TRY(solve_first(f, problem, 0, f->block->n_first, out, err));
    for (int i = 0; !f->ranks->joint && i < f->block->n_first; i++)
        if (f->ranks->rank[i] > 0) NMLP_TRY(solve_first(f, problem, i, 1, out, err));
    st = NMLP_OK;
out:
    nmlp_mem_free(gram);
    nmlp_mem_free(cross);
    if (st != NMLP_OK) variant_fini(out);
    return st;
}

/* What o should add, in pass->y, and the moments of that and of what it sees. */
static nmlp_status last_moments(struct fit *f, double *gram, double *cross, int64_t q_dim, nmlp_err *err) {
    nmlp_refit_pass *p = f->p;
    int64_t h = p->dense.hidden;
    double scale = nmlp_engine_model(engine_of(f))->config.residual_scale;
    for (int64_t i = 0; i < f->n_calib * h; i++)
        p->y[i] = (float)(((double)f->goal.rows[i] - (double)p->compressed.rows[i]) / scale);
    if (p->r->token_weights) {
        scale_rows(p->y, p->weights, f->n_calib, h);
        scale_rows(f->mixed, p->weights, f->n_calib, q_dim);
    }
    NMLP_RETURN_IF_FAILED(nmlp_gram_add(p->kernels, pool_of(f), gram, f->mixed, f->n_calib, q_dim, err));
    NMLP_RETURN_IF_FAILED(
        nmlp_gram_add_cross(p->kernels, pool_of(f), cross, p->y, f->mixed, f->n_calib, h, q_dim, err));
    divide(gram, q_dim * q_dim, f->n_calib);
    divide(cross, h * q_dim, f->n_calib);
    return NMLP_OK;
}

static nmlp_status take_dense(struct fit *f, struct variant *out, const double *w, nmlp_err *err) {
    int last = f->block->n_first;
    nmlp_dtype dtype = f->dense->attention[last].w.dtype;
    int64_t rows = f->block->rows[last], cols = f->block->cols[last];
    void *to = nmlp_mem_new((size_t)(rows * cols), nmlp_dtype_bytes(dtype), err);
    if (!to) return NMLP_E_NOMEM;
    nmlp_narrow(to, dtype, w, rows * cols);
    out->u[last] = to;
    out->layer.attention[last] = (nmlp_factors){.w = nmlp_view_2d(to, dtype, rows, cols)};
    return NMLP_OK;
}

/* o behind the q, k and v of `base`, by what the last trial mixed. */
static nmlp_status fit_last(struct fit *f, const nmlp_layer *base, struct variant *out, nmlp_err *err) {
    int last = f->block->n_first;
    int64_t h = f->block->rows[last], q_dim = f->block->cols[last], rank = f->ranks->rank[last];
    nmlp_status st = NMLP_E_NOMEM;
    *out = (struct variant){.layer = *base};
    double *gram = nmlp_mem_new((size_t)(q_dim * q_dim), sizeof *gram, err);
    double *cross = nmlp_mem_new((size_t)(h * q_dim), sizeof *cross, err);
    double *ut = nmlp_mem_new((size_t)((rank ? rank : 1) * h), sizeof *ut, err);
    double *v = nmlp_mem_new((size_t)((rank ? rank : h) * q_dim), sizeof *v, err);
    if (!gram || !cross || !ut || !v) goto out;
    NMLP_TRY(last_moments(f, gram, cross, q_dim, err));
    nmlp_refit_down problem = {.m = h,
                               .n = q_dim,
                               .w = f->w[last],
                               .gram = gram,
                               .cross = cross,
                               .ridge = NMLP_REFIT_ANCHOR_LAST * (double)q_dim / (double)f->n_calib,
                               .rank = rank};
    NMLP_TRY(nmlp_refit_down_solve(&problem, ut, v, pool_of(f), err));
    if (rank == 0) {
        NMLP_TRY(take_dense(f, out, v, err));
    } else {
        NMLP_TRY(pack(f, &out->nested[last], h, q_dim, rank, ut, v, err));
        NMLP_TRY(take_factors(f, out, last, &out->nested[last], 0, err));
    }
out:
    nmlp_mem_free(gram);
    nmlp_mem_free(cross);
    nmlp_mem_free(ut);
    nmlp_mem_free(v);
    if (st != NMLP_OK) variant_fini(out);
    return st;
}

/* The best of `base` and its fits by held-out error, in *best; what is behind it stays in `first` and `last`. */
static nmlp_status fit_attention(struct fit *f, const nmlp_layer *base, struct variant *first, struct variant *last,
                                 nmlp_layer *best, double errors[2], nmlp_err *err) {
    nmlp_refit_pass *p = f->p;
    int64_t layer = f->block->layer, h = p->dense.hidden;
    nmlp_layer_taps taps = {.x = p->y, .attention_x = p->x};
    nmlp_hidden_states_progress silent = {.stage = "refitting", .total = 1};
    bool factored = false;
    double error;
    for (int i = 0; i < f->block->n_first; i++) factored = factored || f->ranks->rank[i] > 0;
    *best = *base;
    NMLP_RETURN_IF_FAILED(nmlp_hidden_states_run_attention(&f->goal, engine_of(f), layer, &taps, &silent, err));
    for (int64_t t = 0; t < f->n_tokens; t++) p->weights[t] = 1;
    if (p->r->token_weights) nmlp_token_weights(p->weights, f->goal.rows, f->n_tokens, h);
    NMLP_RETURN_IF_FAILED(run_trial(f, base, &errors[0], err));
    errors[1] = errors[0];
    if (nmlp_refit_has_norm_post(p)) return NMLP_OK;
    if (layer > 0 && factored) { /* the first layer's inputs are the dense model's */
        NMLP_RETURN_IF_FAILED(fit_first(f, base, first, err));
        NMLP_RETURN_IF_FAILED(run_trial(f, &first->layer, &error, err));
        bool better = isfinite(error) && error < errors[1];
        if (better) {
            *best = first->layer;
            errors[1] = error;
        } else {
            NMLP_RETURN_IF_FAILED(run_trial(f, base, &error, err)); /* for what it mixes */
        }
    }
    if (!p->r->refit_down) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(fit_last(f, best, last, err));
    NMLP_RETURN_IF_FAILED(run_trial(f, &last->layer, &error, err));
    if (!(isfinite(error) && error < errors[1])) return NMLP_OK;
    *best = last->layer;
    errors[1] = error;
    return NMLP_OK;
}

/* Of held-out rows of the dense stream behind the attention. */
static double energy_of(const struct fit *f) {
    int64_t h = f->p->dense.hidden;
    double sum = 0;
    for (int64_t i = f->n_calib * h; i < f->n_tokens * h; i++) {
        double weight = (double)f->p->weights[i / h], value = (double)f->goal.rows[i];
        sum += weight * weight * value * value;
    }
    return sum;
}

static nmlp_status fit_and_write(nmlp_refit_pass *p, int64_t block, const char *path, nmlp_err *err) {
    const nmlp_refit_job *r = p->r;
    struct fit f = {0};
    nmlp_layer_attention base = {0};
    struct variant first = {0}, last = {0};
    nmlp_layer best;
    double errors[2];
    nmlp_status st = NMLP_OK;
    NMLP_TRY(fit_open(&f, p, block, err));
    NMLP_TRY(nmlp_layer_attention_build(&base, &r->factor_files[block], f.dense, f.ranks, pool_of(&f), err));
    NMLP_TRY(fit_attention(&f, &base.layer, &first, &last, &best, errors, err));
    double energy = energy_of(&f);
    nmlp_layer_file file = {.ranks = *f.ranks,
                            .dense_refitted =
                                f.ranks->rank[NMLP_ATTENTION_O] == 0 &&
                                best.attention[NMLP_ATTENTION_O].w.data != f.dense->attention[NMLP_ATTENTION_O].w.data,
                            .error = energy > 0 ? errors[1] / energy : 0,
                            .error_before = energy > 0 ? errors[0] / energy : 0};
    memcpy(file.factors, best.attention, sizeof best.attention);
    NMLP_TRY(nmlp_layer_file_write(path, r->fingerprint, &file, NMLP_MODULE_ATTENTION, f.dense->attention, err));
out:
    variant_fini(&last);
    variant_fini(&first);
    nmlp_layer_attention_fini(&base);
    nmlp_arena_fini(&f.arena);
    nmlp_factor_file_release(&r->factor_files[block]);
    return st;
}

/* The block of a layer's attention; -1: it stays as it is. */
static int64_t block_of(const nmlp_refit_job *r, int64_t layer) {
    int64_t block = nmlp_engine_model(r->engine)->config.n_layers + layer;
    return block < r->n_blocks && !nmlp_layer_ranks_are_dense(&r->ranks[block]) ? block : -1;
}

static nmlp_status open_file(const nmlp_refit_job *r, int64_t block, nmlp_layer_file *file, char path[4096],
                             nmlp_work_state *state, nmlp_err *err) {
    int64_t layer = r->blocks[block].layer;
    NMLP_RETURN_IF_FAILED(nmlp_refit_path(path, 4096, r->work_dir, layer, NMLP_REFIT_ATTENTION, true, err));
    return nmlp_layer_file_open(file, path, r->fingerprint, &r->ranks[block], 1, NMLP_MODULE_ATTENTION,
                                nmlp_engine_model(r->engine)->layers[layer].attention, state, err);
}

nmlp_status nmlp_refit_attention(nmlp_refit_pass *p, int64_t layer, nmlp_work_tally *tally, nmlp_err *err) {
    int64_t block = block_of(p->r, layer);
    char path[4096];
    nmlp_layer_file file;
    nmlp_work_state state;
    if (block < 0) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(open_file(p->r, block, &file, path, &state, err));
    nmlp_layer_file_close(&file);
    tally->n[state]++;
    return state == NMLP_WORK_VALID ? NMLP_OK : fit_and_write(p, block, path, err);
}

nmlp_status nmlp_refit_run_attention(nmlp_refit_pass *p, int64_t layer, const nmlp_layer_taps *taps, nmlp_err *err) {
    nmlp_engine *engine = p->r->engine;
    int64_t block = block_of(p->r, layer);
    char path[4096];
    nmlp_layer_file file;
    nmlp_work_state state;
    nmlp_layer finished = nmlp_engine_model(engine)->layers[layer];
    if (block < 0) return nmlp_hidden_states_run_attention(&p->compressed, engine, layer, taps, &p->progress, err);
    NMLP_RETURN_IF_FAILED(open_file(p->r, block, &file, path, &state, err));
    if (state != NMLP_WORK_VALID)
        return nmlp_fail(err, NMLP_E_IO, "%s: was written a moment ago and cannot be read back", path);
    nmlp_layer_file_factors(&file, NMLP_MODULE_ATTENTION, nmlp_engine_model(engine)->layers[layer].attention,
                            finished.attention);
    finished.attention_shares_basis = p->r->ranks[block].joint;
    nmlp_status st = nmlp_engine_set_attention(engine, layer, &finished, err);
    if (st == NMLP_OK) st = nmlp_hidden_states_run_attention(&p->compressed, engine, layer, taps, &p->progress, err);
    (void)nmlp_engine_set_attention(engine, layer, NULL, NULL);
    nmlp_layer_file_close(&file);
    return st;
}
