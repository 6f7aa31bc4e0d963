#include "compress/quantize/quant_layer.h"

#include <string.h>

#include "checkpoint/tensor_spec.h"
#include "compress/quantize/quant_factors.h"
#include "linalg/linalg.h"
#include "tensor/quant.h"

enum { ROWS_PER_TASK = 16 };

const char *nmlp_quant_matrix_name(int matrix) {
    static const char *const names[NMLP_QUANT_MATRICES] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                           "gate_proj", "up_proj", "down_proj"};
    return names[matrix];
}

bool nmlp_quant_format_fits(const nmlp_quant_format *format, int64_t rows, int64_t cols) {
    nmlp_tensor_spec spec = {.name = "", .dtype = format->dtype, .group = format->group, .n_dims = 2};
    spec.shape[0] = rows;
    spec.shape[1] = cols;
    return nmlp_tensor_spec_fits(&spec);
}

nmlp_view *nmlp_quant_layer_view(nmlp_layer *layer, int i) {
    if (i < 4) return &layer->attention[i].w;
    nmlp_factors *f = &layer->mlp[(i - 4) / 3];
    return (i - 4) % 3 == 0 ? &f->w : (i - 4) % 3 == 1 ? &f->u : &f->v;
}

int nmlp_quant_view_matrix(int i) { return i < 4 ? i : NMLP_QUANT_GATE + (i - 4) / 3; }

nmlp_status nmlp_quant_view_new(nmlp_view *view, nmlp_arena *arena, const nmlp_quant_format *format, int64_t rows,
                                int64_t cols, nmlp_err *err) {
    *view = nmlp_view_2d(NULL, format->dtype, rows, cols);
    if (nmlp_quant_format_fits(format, rows, cols))
        view->group = format->dtype == NMLP_DTYPE_Q4 ? format->group : 0;
    else
        view->dtype = NMLP_DTYPE_Q8;
    view->data = nmlp_arena_new(arena, nmlp_view_bytes(view), 1, err);
    view->scales = nmlp_arena_new(arena, nmlp_quant_scale_bytes(view), 1, err);
    if (!view->data || !view->scales) return NMLP_E_NOMEM;
    if (view->dtype != NMLP_DTYPE_Q4 || !format->zeros) return NMLP_OK;
    view->zeros = nmlp_arena_new(arena, (size_t)(rows * nmlp_quant_groups(view)), 1, err);
    return view->zeros ? NMLP_OK : NMLP_E_NOMEM;
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
    struct widening w = {.from = view, .to = nmlp_mem_new((size_t)nmlp_view_elems(view), sizeof(float), err)};
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
                               nmlp_err *err) {
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
    if (!nmlp_linalg_cholesky(t->root, k)) t->drift = NULL; /* inputs that are always zero */
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

struct maker {
    nmlp_layer *out;
    nmlp_arena *arena;
    const nmlp_layer *source;
    const nmlp_quant_format *formats;
    nmlp_pool *pool;
};

static bool wants(const struct maker *m, int matrix) { return nmlp_dtype_is_quantised(m->formats[matrix].dtype); }

/* Target and rounding of the matrices that see one kind of inputs. */
struct rounder {
    struct target target;
    nmlp_gptq gptq;
};

static nmlp_status open_rounder(struct rounder *r, const struct maker *m, const nmlp_quant_moments *c,
                                nmlp_quant_input input, int64_t k, nmlp_err *err) {
    *r = (struct rounder){0};
    nmlp_status st = open_target(&r->target, c, input, k, err);
    if (st == NMLP_OK) st = nmlp_gptq_init(&r->gptq, m->pool, c->second[input], k, err);
    return st;
}

static void close_rounder(struct rounder *r) {
    close_target(&r->target);
    nmlp_gptq_fini(&r->gptq);
}

static nmlp_status round_dense(const struct maker *m, int matrix, const struct rounder *r, const nmlp_view *source,
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

static nmlp_status make_attention(const struct maker *m, const nmlp_quant_moments *c, nmlp_err *err) {
    const nmlp_factors *s = m->source->attention;
    nmlp_factors *out = m->out->attention;
    static const int from_input[] = {NMLP_ATTENTION_Q, NMLP_ATTENTION_K, NMLP_ATTENTION_V};
    struct rounder r = {0};
    nmlp_status st = NMLP_OK;
    if (wants(m, NMLP_QUANT_Q) || wants(m, NMLP_QUANT_K) || wants(m, NMLP_QUANT_V)) {
        NMLP_TRY(open_rounder(&r, m, c, NMLP_QUANT_ATTENTION_INPUT, s[NMLP_ATTENTION_Q].w.shape[1], err));
        for (int i = 0; i < 3; i++)
            NMLP_TRY(round_dense(m, NMLP_QUANT_Q + i, &r, &s[from_input[i]].w, &out[from_input[i]].w, err));
        close_rounder(&r);
    }
    if (wants(m, NMLP_QUANT_O)) {
        NMLP_TRY(open_rounder(&r, m, c, NMLP_QUANT_ATTENTION_MIXED, s[NMLP_ATTENTION_O].w.shape[1], err));
        NMLP_TRY(round_dense(m, NMLP_QUANT_O, &r, &s[NMLP_ATTENTION_O].w, &out[NMLP_ATTENTION_O].w, err));
    }
out:
    close_rounder(&r);
    return st;
}

/* One MLP matrix, or gate and up with their shared v. */
static nmlp_status make_projection(const struct maker *m, int first, int n, const struct rounder *r, const double *c,
                                   nmlp_err *err) {
    const nmlp_factors *source = &m->source->mlp[first];
    nmlp_factors *out = &m->out->mlp[first];
    int matrix = NMLP_QUANT_GATE + first;
    if (!wants(m, matrix)) return NMLP_OK;
    if (nmlp_factors_is_dense(source)) return round_dense(m, matrix, r, &source->w, &out->w, err);
    nmlp_quant_factors factors = {.gptq = &r->gptq,
                                  .moments = c,
                                  .format = &m->formats[matrix],
                                  .source = source,
                                  .out = out,
                                  .n = n,
                                  .arena = m->arena,
                                  .pool = m->pool};
    return nmlp_quant_factors_make(&factors, err);
}

static nmlp_status make_mlp(const struct maker *m, const nmlp_quant_moments *c, nmlp_err *err) {
    struct rounder r = {0};
    nmlp_status st = NMLP_OK;
    bool shared = m->source->shared_basis;
    if (wants(m, NMLP_QUANT_GATE) || wants(m, NMLP_QUANT_UP)) {
        int64_t h = nmlp_factors_cols(&m->source->mlp[NMLP_MLP_GATE]);
        const double *second = c->second[NMLP_QUANT_MLP_INPUT];
        NMLP_TRY(open_rounder(&r, m, c, NMLP_QUANT_MLP_INPUT, h, err));
        NMLP_TRY(make_projection(m, NMLP_MLP_GATE, shared ? 2 : 1, &r, second, err));
        if (!shared) NMLP_TRY(make_projection(m, NMLP_MLP_UP, 1, &r, second, err));
        close_rounder(&r);
    }
    if (wants(m, NMLP_QUANT_DOWN)) {
        int64_t i = nmlp_factors_cols(&m->source->mlp[NMLP_MLP_DOWN]);
        NMLP_TRY(open_rounder(&r, m, c, NMLP_QUANT_MLP_ACT, i, err));
        NMLP_TRY(make_projection(m, NMLP_MLP_DOWN, 1, &r, c->second[NMLP_QUANT_MLP_ACT], err));
    }
out:
    close_rounder(&r);
    return st;
}

nmlp_status nmlp_quant_layer_make(nmlp_layer *out, nmlp_arena *arena, const nmlp_layer *source,
                                  const nmlp_quant_format formats[NMLP_QUANT_MATRICES],
                                  const nmlp_quant_moments *moments, nmlp_pool *pool, nmlp_err *err) {
    struct maker m = {.out = out, .arena = arena, .source = source, .formats = formats, .pool = pool};
    *out = *source;
    NMLP_RETURN_IF_FAILED(make_attention(&m, moments, err));
    return make_mlp(&m, moments, err);
}
