#include "compress/quantize/quant_stand_in.h"

nmlp_status nmlp_quant_stand_in_init(nmlp_quant_stand_in *s, nmlp_engine *engine, int64_t index,
                                     const nmlp_layer *source, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(engine)->config;
    *s = (nmlp_quant_stand_in){.engine = engine, .index = index, .n_views = nmlp_quant_layer_views(c, index)};
    nmlp_arena_init(&s->arena);
    s->owned = nmlp_arena_new(&s->arena, (size_t)s->n_views, sizeof(float *), err);
    return s->owned ? nmlp_quant_layer_copy(&s->layer, &s->arena, source, c, err) : NMLP_E_NOMEM;
}

void nmlp_quant_stand_in_set(nmlp_quant_stand_in *s, int64_t i, float *values) {
    nmlp_view *view = nmlp_quant_layer_view(&s->layer, i);
    *view = nmlp_view_2d(values, NMLP_DTYPE_F32, view->shape[0], view->shape[1]);
    s->owned[i] = values;
}

nmlp_status nmlp_quant_stand_in_install(nmlp_quant_stand_in *s, nmlp_err *err) {
    int64_t n = nmlp_config_mlp_count(&nmlp_engine_model(s->engine)->config, s->index);
    nmlp_mlp_desc *descs = nmlp_arena_new(&s->arena, (size_t)n, sizeof *descs, err);
    if (!descs) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < s->n_views; i++)
        *nmlp_quant_layer_view(&s->layer, i) = *nmlp_quant_layer_view(&s->layer, nmlp_quant_view_first(&s->layer, i));
    for (int64_t e = 0; e < n; e++) {
        const nmlp_factors *mlp = nmlp_layer_mlp_at(&s->layer, e);
        descs[e] = (nmlp_mlp_desc){.gate = mlp[NMLP_MLP_GATE], .up = mlp[NMLP_MLP_UP], .down = mlp[NMLP_MLP_DOWN]};
    }
    NMLP_RETURN_IF_FAILED(nmlp_engine_set_mlp(s->engine, s->index, descs, err));
    return nmlp_engine_set_attention(s->engine, s->index, &s->layer, err);
}

void nmlp_quant_stand_in_remove(nmlp_quant_stand_in *s) {
    if (!s->engine) return;
    (void)nmlp_engine_set_mlp(s->engine, s->index, NULL, NULL);
    (void)nmlp_engine_set_attention(s->engine, s->index, NULL, NULL);
    for (int64_t i = 0; s->owned && i < s->n_views; i++) nmlp_mem_free(s->owned[i]);
    nmlp_arena_fini(&s->arena);
    *s = (nmlp_quant_stand_in){0};
}
