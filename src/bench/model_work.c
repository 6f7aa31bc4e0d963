#include "bench/model_work.h"

#include "tensor/quant.h"

static double matrix_bytes(const nmlp_view *view) { return (double)nmlp_quant_stored_bytes(view); }

/* Of matrices of which those before `last` may share their v. */
static double factors_bytes(const nmlp_factors *factors, int last, bool shared_basis) {
    double bytes = 0;
    for (int i = 0; i <= last; i++) {
        const nmlp_factors *f = &factors[i];
        bool basis_counted = shared_basis && i > 0 && i < last;
        bytes += f->w.data ? matrix_bytes(&f->w) : matrix_bytes(&f->u) + (basis_counted ? 0 : matrix_bytes(&f->v));
    }
    return bytes;
}

nmlp_model_work nmlp_model_work_of(const nmlp_model *model) {
    const nmlp_config *c = &model->config;
    nmlp_model_size size = nmlp_model_measure(model);
    nmlp_model_work work = {.layer_params = (double)(size.mlp_params + size.attention_params),
                            .head_params = (double)nmlp_view_elems(&model->lm_head),
                            .matrix_bytes = matrix_bytes(&model->lm_head),
                            .attention_flop = 4.0 * (double)(c->n_layers * c->n_heads * c->head_dim)};
    for (int64_t l = 0; l < c->n_layers; l++) {
        const nmlp_layer *layer = &model->layers[l];
        work.matrix_bytes += factors_bytes(layer->attention, NMLP_ATTENTION_O, layer->attention_shares_basis);
        work.matrix_bytes += factors_bytes(layer->mlp, NMLP_MLP_DOWN, layer->shared_basis);
    }
    return work;
}

double nmlp_model_work_prompt_gflop(const nmlp_model_work *w, double prompt) {
    return (2.0 * (w->layer_params + w->head_params / prompt) + w->attention_flop * (prompt + 1) / 2) * 1e-9;
}

double nmlp_model_work_step_gb(const nmlp_model_work *w) { return w->matrix_bytes * 1e-9; }
