#include "compress/quantize/quant_model.h"

nmlp_status nmlp_quant_model_init(nmlp_quant_model *q, const nmlp_model *m, nmlp_err *err) {
    *q = (nmlp_quant_model){.embedding = m->embedding, .lm_head = m->lm_head, .n_layers = m->config.n_layers};
    nmlp_arena_init(&q->experts);
    q->layers = nmlp_mem_new((size_t)q->n_layers, sizeof *q->layers, err);
    q->maps = nmlp_mem_new((size_t)q->n_layers, sizeof *q->maps, err);
    if (!q->layers || !q->maps) return NMLP_E_NOMEM;
    for (int64_t l = 0; l < q->n_layers; l++)
        NMLP_RETURN_IF_FAILED(nmlp_quant_layer_copy(&q->layers[l], &q->experts, &m->layers[l], &m->config, err));
    return NMLP_OK;
}

void nmlp_quant_model_fini(nmlp_quant_model *q) {
    for (int64_t l = 0; q->maps && l < q->n_layers; l++) nmlp_file_map_close(&q->maps[l]);
    nmlp_file_map_close(&q->head_map);
    if (q->layers) nmlp_arena_fini(&q->experts);
    nmlp_mem_free(q->layers);
    nmlp_mem_free(q->maps);
    *q = (nmlp_quant_model){0};
}
