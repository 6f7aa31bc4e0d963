/* Which kernels a model's MLPs need: layers whose projections have the same ranks share one form. */
#ifndef NMLP_TRAINIUM_PACKAGE_FORMS_H
#define NMLP_TRAINIUM_PACKAGE_FORMS_H

#include "model/model.h"
#include "trainium/plan/predict.h"

typedef struct nmlp_mlp_forms {
    nmlp_mlp_form *list; /* in order of their first layer */
    size_t n;
    size_t *of_layer; /* [n_layers] */
} nmlp_mlp_forms;

nmlp_mlp_ranks nmlp_mlp_layer_ranks(const nmlp_layer *layer);
nmlp_status nmlp_mlp_forms_of(nmlp_mlp_forms *forms, const nmlp_model *model, nmlp_err *err);
void nmlp_mlp_forms_fini(nmlp_mlp_forms *forms);

#endif
