#include "trainium/package/forms.h"

#include "base/mem.h"

nmlp_mlp_ranks nmlp_mlp_layer_ranks(const nmlp_layer *layer) {
    return (nmlp_mlp_ranks){.gate = nmlp_factors_rank(&layer->mlp[NMLP_MLP_GATE]),
                            .up = nmlp_factors_rank(&layer->mlp[NMLP_MLP_UP]),
                            .down = nmlp_factors_rank(&layer->mlp[NMLP_MLP_DOWN]),
                            .shared = layer->shared_basis};
}

static bool same_ranks(nmlp_mlp_ranks a, nmlp_mlp_ranks b) {
    return a.gate == b.gate && a.up == b.up && a.down == b.down && a.shared == b.shared;
}

nmlp_status nmlp_mlp_forms_of(nmlp_mlp_forms *forms, const nmlp_model *model, nmlp_err *err) {
    size_t n_layers = (size_t)model->config.n_layers;
    *forms = (nmlp_mlp_forms){0};
    forms->list = nmlp_mem_new(n_layers, sizeof *forms->list, err);
    forms->of_layer = nmlp_mem_new(n_layers, sizeof *forms->of_layer, err);
    if (!forms->list || !forms->of_layer) {
        nmlp_mlp_forms_fini(forms);
        return NMLP_E_NOMEM;
    }
    for (size_t l = 0; l < n_layers; l++) {
        nmlp_mlp_ranks ranks = nmlp_mlp_layer_ranks(&model->layers[l]);
        size_t f = 0;
        while (f < forms->n && !same_ranks(forms->list[f].ranks, ranks)) f++;
        if (f == forms->n) forms->list[forms->n++].ranks = ranks;
        forms->list[f].n_layers++;
        forms->of_layer[l] = f;
    }
    return NMLP_OK;
}

void nmlp_mlp_forms_fini(nmlp_mlp_forms *forms) {
    nmlp_mem_free(forms->list);
    nmlp_mem_free(forms->of_layer);
    *forms = (nmlp_mlp_forms){0};
}
