/* Quantised matrices as the f32 numbers they stand for. */
#include "model/model.h"

#include "base/file.h"
#include "tensor/quant.h"

enum { ROWS_PER_TASK = 16 };

struct widening {
    const nmlp_view *from;
    float *to;
};

static void widen_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct widening *w = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) nmlp_quant_row_to_f32(w->to + i * w->from->shape[1], w->from, i);
}

static nmlp_status widen(nmlp_model *m, nmlp_view *view, nmlp_pool *pool, nmlp_err *err) {
    if (!view->data || !nmlp_dtype_is_quantised(view->dtype)) return NMLP_OK;
    struct widening w = {.from = view,
                         .to = nmlp_arena_new(&m->widened, (size_t)nmlp_view_elems(view), sizeof *w.to, err)};
    if (!w.to) return NMLP_E_NOMEM;
    nmlp_pool_for(pool, view->shape[0], ROWS_PER_TASK, widen_rows, &w);
    nmlp_file_map_release(view->data, nmlp_view_bytes(view));
    *view = nmlp_view_2d(w.to, NMLP_DTYPE_F32, view->shape[0], view->shape[1]);
    return NMLP_OK;
}

static nmlp_status widen_module(nmlp_model *m, nmlp_factors *factors, nmlp_module_kind kind, bool shared_basis,
                                nmlp_pool *pool, nmlp_err *err) {
    int n_first = nmlp_module_of(kind)->n_first;
    for (int i = 0; i <= n_first; i++) {
        nmlp_factors *f = &factors[i];
        NMLP_RETURN_IF_FAILED(widen(m, &f->w, pool, err));
        NMLP_RETURN_IF_FAILED(widen(m, &f->u, pool, err));
        if (i > 0 && i < n_first && shared_basis)
            f->v = factors[0].v;
        else
            NMLP_RETURN_IF_FAILED(widen(m, &f->v, pool, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_model_widen(nmlp_model *m, nmlp_pool *pool, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(widen(m, &m->lm_head, pool, err));
    for (int64_t l = 0; l < m->config.n_layers; l++) {
        nmlp_layer *layer = &m->layers[l];
        NMLP_RETURN_IF_FAILED(
            widen_module(m, layer->attention, NMLP_MODULE_ATTENTION, layer->attention_shares_basis, pool, err));
        NMLP_RETURN_IF_FAILED(widen(m, &layer->router, pool, err));
        for (int64_t e = 0; layer->experts && e < m->config.n_experts; e++)
            NMLP_RETURN_IF_FAILED(
                widen_module(m, layer->experts[e].mlp, NMLP_MODULE_MLP, layer->experts[e].shared_basis, pool, err));
        if (!layer->experts)
            NMLP_RETURN_IF_FAILED(widen_module(m, layer->mlp, NMLP_MODULE_MLP, layer->shared_basis, pool, err));
    }
    return NMLP_OK;
}
