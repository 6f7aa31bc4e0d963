#include "compress/quantize/quant_layer.h"

#include <string.h>

#include "compress/quantize/quant_factors.h"
#include "linalg/linalg.h"
#include "tensor/quant.h"

enum { ROWS_PER_TASK = 16 };

const char *nmlp_quant_matrix_name(int matrix) {
    static const char *const names[NMLP_QUANT_MATRICES] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                           "gate_proj", "up_proj", "down_proj"};
    return names[matrix];
}

/* w, u and v of every matrix. */
enum { PARTS = 3, V = 2, ATTENTION_VIEWS = PARTS * NMLP_ATTENTION_MATRICES, MLP_VIEWS = PARTS * NMLP_MLP_MATRICES };

int64_t nmlp_quant_layer_views(const nmlp_config *config, int64_t layer) {
    return ATTENTION_VIEWS + MLP_VIEWS * nmlp_config_mlp_count(config, layer);
}

static nmlp_factors *factors_of(nmlp_layer *layer, int64_t i) {
    if (i < ATTENTION_VIEWS) return &layer->attention[i / PARTS];
    int64_t at = i - ATTENTION_VIEWS, matrix = at % MLP_VIEWS / PARTS;
    return layer->experts ? &layer->experts[at / MLP_VIEWS].mlp[matrix] : &layer->mlp[matrix];
}

nmlp_view *nmlp_quant_layer_view(nmlp_layer *layer, int64_t i) {
    nmlp_factors *f = factors_of(layer, i);
    return i % PARTS == 0 ? &f->w : i % PARTS == 1 ? &f->u : &f->v;
}

int nmlp_quant_view_matrix(int64_t i) {
    if (i < ATTENTION_VIEWS) return (int)(i / PARTS);
    return NMLP_QUANT_GATE + (int)((i - ATTENTION_VIEWS) % MLP_VIEWS / PARTS);
}

/* Whether the first matrices of the module that view i belongs to share their v. */
static bool shares_basis(const nmlp_layer *layer, int64_t i) {
    if (i < ATTENTION_VIEWS) return layer->attention_shares_basis;
    return nmlp_layer_shares_basis(layer, (i - ATTENTION_VIEWS) / MLP_VIEWS);
}

int64_t nmlp_quant_view_first(const nmlp_layer *layer, int64_t i) {
    int matrix = nmlp_quant_view_matrix(i), first = matrix < NMLP_QUANT_GATE ? NMLP_QUANT_Q : NMLP_QUANT_GATE;
    bool last = matrix == NMLP_QUANT_O || matrix == NMLP_QUANT_DOWN;
    if (i % PARTS != V || last || !shares_basis(layer, i)) return i;
    return i - (int64_t)PARTS * (matrix - first);
}

bool nmlp_quant_owns(const nmlp_layer *layer, int64_t i, int matrix) {
    int owner = nmlp_quant_view_matrix(i);
    if (nmlp_quant_view_first(layer, i) != i) return false;
    if (shares_basis(layer, i) && owner < NMLP_QUANT_O) owner = NMLP_QUANT_Q;
    if (shares_basis(layer, i) && owner == NMLP_QUANT_UP) owner = NMLP_QUANT_GATE;
    return owner == matrix;
}

nmlp_status nmlp_quant_layer_copy(nmlp_layer *out, nmlp_arena *arena, const nmlp_layer *source,
                                  const nmlp_config *config, nmlp_err *err) {
    *out = *source;
    if (!source->experts) return NMLP_OK;
    size_t n = (size_t)config->n_experts;
    out->experts = nmlp_arena_new(arena, n, sizeof *out->experts, err);
    if (!out->experts) return NMLP_E_NOMEM;
    memcpy(out->experts, source->experts, n * sizeof *out->experts);
    return NMLP_OK;
}

nmlp_status nmlp_quant_view_new(nmlp_view *view, nmlp_arena *arena, const nmlp_quant_format *format, int64_t rows,
                                int64_t cols, nmlp_err *err) {
    *view = nmlp_view_2d(NULL, format->dtype, rows, cols);
    if (nmlp_quant_format_fits(format, rows, cols))
        view->group = format->group;
    else
        view->dtype = NMLP_DTYPE_Q8;
    view->data = nmlp_arena_new(arena, nmlp_view_bytes(view), 1, err);
    view->scales = nmlp_arena_new(arena, nmlp_quant_scale_bytes(view), 1, err);
    if (!view->data || !view->scales) return NMLP_E_NOMEM;
    if (!nmlp_quant_has_multipliers(view->dtype) && !(view->dtype == NMLP_DTYPE_Q4 && format->zeros)) return NMLP_OK;
    view->per_group = nmlp_arena_new(arena, (size_t)(rows * nmlp_quant_groups(view)), 1, err);
    return view->per_group ? NMLP_OK : NMLP_E_NOMEM;
}

struct widening {
    const nmlp_view *from;
    float *to;
};

static void widen_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct widening *w = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) nmlp_quant_row_to_f32(w->to + i * w->from->shape[1], w->from, i);
}

float *nmlp_quant_widen(const nmlp_view *view, nmlp_pool *pool, nmlp_err *err) {
    struct widening w = {.from = view, .to = nmlp_mem_new_raw((size_t)nmlp_view_elems(view), sizeof(float), err)};
    if (w.to) nmlp_pool_for(pool, view->shape[0], ROWS_PER_TASK, widen_rows, &w);
    return w.to;
}

int64_t nmlp_quant_input_size(const nmlp_config *c, nmlp_quant_input input) {
    return input == NMLP_QUANT_MLP_ACT           ? c->intermediate
           : input == NMLP_QUANT_ATTENTION_MIXED ? c->n_heads * c->head_dim
                                                 : c->hidden;
}

/* ---- the target ---- */

static const double target_ridge = 0.01; /* of the mean of the diagonal */

/* What matrices with the same inputs share: W + W drift (C + ridge)^-1 has on the quantised model's inputs the outputs
 * that W has on the model's own, as well as it can. Rounding aims half way at it, since all the way fits the text, and
 * less where tokens are few for so many inputs: S / (S + 4 K) of half. */
struct target {
    const double *drift; /* NULL: W itself */
    double *root;        /* of C + ridge, lower triangular */
    int64_t k;
    float share;
};

static nmlp_status open_target(struct target *t, const nmlp_quant_moments *c, nmlp_quant_input input, int64_t k,
                               nmlp_pool *pool, nmlp_err *err) {
    const double *second = c->second[input];
    double mean = 0;
    *t = (struct target){
        .drift = c->drift[input], .k = k, .share = (float)(0.5 * (double)c->tokens / (double)(c->tokens + 4 * k))};
    if (!t->drift) return NMLP_OK;
    t->root = nmlp_mem_new((size_t)(k * k), sizeof *t->root, err);
    if (!t->root) return NMLP_E_NOMEM;
    memcpy(t->root, second, (size_t)(k * k) * sizeof *t->root);
    for (int64_t i = 0; i < k; i++) mean += second[i * k + i] / (double)k;
    for (int64_t i = 0; i < k; i++) t->root[i * k + i] += target_ridge * mean;
    if (!nmlp_linalg_cholesky(pool, t->root, k)) t->drift = NULL; /* inputs that are always zero */
    return NMLP_OK;
}

static void close_target(struct target *t) {
    nmlp_mem_free(t->root);
    *t = (struct target){0};
}

/* w [N,K] becomes what is rounded. */
static nmlp_status aim(const struct target *t, float *w, int64_t n, nmlp_pool *pool, nmlp_err *err) {
    size_t elems = (size_t)(n * t->k);
    if (!t->drift) return NMLP_OK;
    double *wide = nmlp_mem_new(elems, sizeof *wide, err), *shift = nmlp_mem_new(elems, sizeof *shift, err);
    nmlp_status st = wide && shift ? NMLP_OK : NMLP_E_NOMEM;
    for (size_t i = 0; st == NMLP_OK && i < elems; i++) wide[i] = (double)w[i];
    if (st == NMLP_OK)
        st = nmlp_linalg_gemm_f32(pool, NMLP_PLAIN, NMLP_PLAIN, n, t->k, t->k, wide, t->drift, shift, t->k, err);
    if (st == NMLP_OK) {
        nmlp_linalg_solve_right_transposed(pool, t->root, shift, n, t->k);
        nmlp_linalg_solve_right(pool, t->root, shift, n, t->k);
        for (size_t i = 0; i < elems; i++) w[i] += t->share * (float)shift[i];
    }
    nmlp_mem_free(wide);
    nmlp_mem_free(shift);
    return st;
}

/* ---- layers ---- */

static bool wants(const nmlp_quant_maker *m, int matrix) { return nmlp_dtype_is_quantised(m->formats[matrix].dtype); }

/* Target and rounding of the matrices that see one kind of inputs. */
struct rounder {
    double *second; /* [K,K] of the inputs */
    struct target target;
    nmlp_gptq gptq;
};

static nmlp_status open_rounder(struct rounder *r, const nmlp_quant_maker *m, nmlp_quant_input input, int64_t k,
                                nmlp_err *err) {
    *r = (struct rounder){.second = m->moments->second[input]};
    nmlp_status st = open_target(&r->target, m->moments, input, k, m->pool, err);
    if (st == NMLP_OK) st = nmlp_gptq_init(&r->gptq, m->pool, r->second, k, err);
    return st;
}

static void close_rounder(struct rounder *r) {
    close_target(&r->target);
    nmlp_gptq_fini(&r->gptq);
}

static nmlp_status round_dense(const nmlp_quant_maker *m, int matrix, const struct rounder *r, const nmlp_view *source,
                               nmlp_view *out, nmlp_err *err) {
    if (!wants(m, matrix)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(
        nmlp_quant_view_new(out, m->arena, &m->formats[matrix], source->shape[0], source->shape[1], err));
    float *w = nmlp_quant_widen(source, m->pool, err);
    if (!w) return NMLP_E_NOMEM;
    nmlp_status st = aim(&r->target, w, source->shape[0], m->pool, err);
    if (st == NMLP_OK) st = nmlp_gptq_round(&r->gptq, w, out, NULL, err);
    nmlp_mem_free(w);
    return st;
}

/* One matrix, or n with a shared v. */
static nmlp_status make_projection(const nmlp_quant_maker *m, int matrix, int n, const struct rounder *r,
                                   const nmlp_factors *source, nmlp_factors *out, nmlp_err *err) {
    if (!wants(m, matrix)) return NMLP_OK;
    if (nmlp_factors_is_dense(source)) return round_dense(m, matrix, r, &source->w, &out->w, err);
    nmlp_quant_factors factors = {.gptq = &r->gptq,
                                  .moments = r->second,
                                  .format = &m->formats[matrix],
                                  .source = source,
                                  .out = out,
                                  .n = n,
                                  .arena = m->arena,
                                  .pool = m->pool};
    return nmlp_quant_factors_make(&factors, err);
}

/* A module: n_first matrices that see `input`, and one that sees `inner`. */
struct module {
    int matrix; /* the first's number among those of a layer */
    int n_first;
    bool shared_basis;
    nmlp_quant_input input, inner;
};

static nmlp_status make_module(const nmlp_quant_maker *m, const struct module *module, const nmlp_factors *source,
                               nmlp_factors *out, nmlp_err *err) {
    struct rounder r = {0};
    nmlp_status st = NMLP_OK;
    int last = module->n_first, step = module->shared_basis ? last : 1;
    bool any = false;
    for (int i = 0; i < last && !m->skips[module->input]; i += step) any = any || wants(m, module->matrix + i);
    if (any) {
        NMLP_TRY(open_rounder(&r, m, module->input, nmlp_factors_cols(source), err));
        for (int i = 0; i < last; i += step)
            NMLP_TRY(make_projection(m, module->matrix + i, step, &r, &source[i], &out[i], err));
        close_rounder(&r);
    }
    if (wants(m, module->matrix + last) && !m->skips[module->inner]) {
        NMLP_TRY(open_rounder(&r, m, module->inner, nmlp_factors_cols(&source[last]), err));
        NMLP_TRY(make_projection(m, module->matrix + last, 1, &r, &source[last], &out[last], err));
    }
out:
    close_rounder(&r);
    return st;
}

nmlp_status nmlp_quant_attention_make(nmlp_layer *out, const nmlp_layer *source, const nmlp_quant_maker *maker,
                                      nmlp_err *err) {
    struct module module = {.matrix = NMLP_QUANT_Q,
                            .n_first = NMLP_ATTENTION_O,
                            .shared_basis = source->attention_shares_basis,
                            .input = NMLP_QUANT_ATTENTION_INPUT,
                            .inner = NMLP_QUANT_ATTENTION_MIXED};
    return make_module(maker, &module, source->attention, out->attention, err);
}

nmlp_status nmlp_quant_mlp_make(nmlp_factors out[NMLP_MLP_MATRICES], const nmlp_factors source[NMLP_MLP_MATRICES],
                                bool shared_basis, const nmlp_quant_maker *maker, nmlp_err *err) {
    struct module module = {.matrix = NMLP_QUANT_GATE,
                            .n_first = NMLP_MLP_DOWN,
                            .shared_basis = shared_basis,
                            .input = NMLP_QUANT_MLP_INPUT,
                            .inner = NMLP_QUANT_MLP_ACT};
    return make_module(maker, &module, source, out, err);
}
