#include "compress/quantize/quant_layer.h"

#include "checkpoint/tensor_spec.h"
#include "compress/quantize/quant_factors.h"
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

struct maker {
    nmlp_layer *out;
    nmlp_arena *arena;
    const nmlp_layer *source;
    const nmlp_quant_format *formats;
    nmlp_pool *pool;
};

static bool wants(const struct maker *m, int matrix) { return nmlp_dtype_is_quantised(m->formats[matrix].dtype); }

static nmlp_status round_dense(const struct maker *m, int matrix, const nmlp_gptq *gptq, const nmlp_view *source,
                               nmlp_view *out, nmlp_err *err) {
    if (!wants(m, matrix)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(
        nmlp_quant_view_new(out, m->arena, &m->formats[matrix], source->shape[0], source->shape[1], err));
    float *w = nmlp_quant_widen(source, m->pool, err);
    if (!w) return NMLP_E_NOMEM;
    nmlp_status st = nmlp_gptq_round(gptq, w, out, NULL, err);
    nmlp_mem_free(w);
    return st;
}

static nmlp_status make_attention(const struct maker *m, const nmlp_quant_moments *c, nmlp_err *err) {
    const nmlp_layer *s = m->source;
    nmlp_gptq gptq = {0};
    nmlp_status st = NMLP_OK;
    if (wants(m, NMLP_QUANT_Q) || wants(m, NMLP_QUANT_K) || wants(m, NMLP_QUANT_V)) {
        NMLP_TRY(nmlp_gptq_init(&gptq, m->pool, c->attention_input, s->attention[NMLP_ATTENTION_Q].w.shape[1], err));
        NMLP_TRY(round_dense(m, NMLP_QUANT_Q, &gptq, &s->attention[NMLP_ATTENTION_Q].w,
                             &m->out->attention[NMLP_ATTENTION_Q].w, err));
        NMLP_TRY(round_dense(m, NMLP_QUANT_K, &gptq, &s->attention[NMLP_ATTENTION_K].w,
                             &m->out->attention[NMLP_ATTENTION_K].w, err));
        NMLP_TRY(round_dense(m, NMLP_QUANT_V, &gptq, &s->attention[NMLP_ATTENTION_V].w,
                             &m->out->attention[NMLP_ATTENTION_V].w, err));
        nmlp_gptq_fini(&gptq);
    }
    if (wants(m, NMLP_QUANT_O)) {
        NMLP_TRY(nmlp_gptq_init(&gptq, m->pool, c->attention_mixed, s->attention[NMLP_ATTENTION_O].w.shape[1], err));
        NMLP_TRY(round_dense(m, NMLP_QUANT_O, &gptq, &s->attention[NMLP_ATTENTION_O].w,
                             &m->out->attention[NMLP_ATTENTION_O].w, err));
    }
out:
    nmlp_gptq_fini(&gptq);
    return st;
}

/* One MLP matrix, or gate and up with their shared v. */
static nmlp_status make_projection(const struct maker *m, int first, int n, const nmlp_gptq *gptq, const double *c,
                                   nmlp_err *err) {
    const nmlp_factors *source = &m->source->mlp[first];
    nmlp_factors *out = &m->out->mlp[first];
    int matrix = NMLP_QUANT_GATE + first;
    if (!wants(m, matrix)) return NMLP_OK;
    if (nmlp_factors_is_dense(source)) return round_dense(m, matrix, gptq, &source->w, &out->w, err);
    nmlp_quant_factors factors = {.gptq = gptq,
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
    nmlp_gptq gptq = {0};
    nmlp_status st = NMLP_OK;
    bool shared = m->source->shared_basis;
    if (wants(m, NMLP_QUANT_GATE) || wants(m, NMLP_QUANT_UP)) {
        int64_t h = nmlp_factors_cols(&m->source->mlp[NMLP_MLP_GATE]);
        NMLP_TRY(nmlp_gptq_init(&gptq, m->pool, c->mlp_input, h, err));
        NMLP_TRY(make_projection(m, NMLP_MLP_GATE, shared ? 2 : 1, &gptq, c->mlp_input, err));
        if (!shared) NMLP_TRY(make_projection(m, NMLP_MLP_UP, 1, &gptq, c->mlp_input, err));
        nmlp_gptq_fini(&gptq);
    }
    if (wants(m, NMLP_QUANT_DOWN)) {
        int64_t i = nmlp_factors_cols(&m->source->mlp[NMLP_MLP_DOWN]);
        NMLP_TRY(nmlp_gptq_init(&gptq, m->pool, c->mlp_act, i, err));
        NMLP_TRY(make_projection(m, NMLP_MLP_DOWN, 1, &gptq, c->mlp_act, err));
    }
out:
    nmlp_gptq_fini(&gptq);
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
