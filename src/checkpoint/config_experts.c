/* Experts: the keys of config.json for them. */
#include "checkpoint/config_internal.h"

enum { EXPERTS_MAX = 4096 };

/* Layers that have one MLP: those listed, and those between every n-th. */
static nmlp_status read_dense_layers(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    int64_t step = 1;
    NMLP_RETURN_IF_FAILED(
        nmlp_json_optional_int(doc, doc->root, "decoder_sparse_step", 1, NMLP_LAYERS_MAX, &step, err));
    for (int64_t l = 0; l < c->n_layers; l++)
        if ((l + 1) % step != 0) nmlp_layer_set_add(&c->dense_layers, l);
    const nmlp_json *listed = nmlp_json_get(doc->root, "mlp_only_layers");
    for (const nmlp_json *v = nmlp_json_first(listed); v; v = nmlp_json_next(v)) {
        int64_t layer;
        if (!nmlp_json_int_in(v, 0, c->n_layers - 1, &layer))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: mlp_only_layers must be numbers of layers", doc->origin);
        nmlp_layer_set_add(&c->dense_layers, layer);
    }
    return NMLP_OK;
}

nmlp_status nmlp_config_read_experts(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_family *f = c->features;
    const nmlp_json *root = doc->root;
    if (f->experts == NMLP_EXPERTS_NONE) return NMLP_OK;
    c->n_experts = f->n_experts;
    c->experts_per_token = f->experts_per_token;
    c->normalise_experts = f->normalise_experts;
    c->expert_intermediate = f->expert_intermediate ? f->expert_intermediate : c->intermediate;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, root, "num_local_experts", 1, EXPERTS_MAX, &c->n_experts, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, root, "num_experts", 1, EXPERTS_MAX, &c->n_experts, err));
    NMLP_RETURN_IF_FAILED(
        nmlp_json_optional_int(doc, root, "num_experts_per_tok", 1, EXPERTS_MAX, &c->experts_per_token, err));
    if (!f->normalise_experts)
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, root, "norm_topk_prob", &c->normalise_experts, err));
    if (f->expert_intermediate) {
        NMLP_RETURN_IF_FAILED(
            nmlp_json_optional_int(doc, root, "moe_intermediate_size", 1, 1 << 24, &c->expert_intermediate, err));
        NMLP_RETURN_IF_FAILED(read_dense_layers(c, doc, err));
    }
    if (c->experts_per_token <= c->n_experts) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: num_experts_per_tok %lld is more than there are experts, %lld",
                     doc->origin, (long long)c->experts_per_token, (long long)c->n_experts);
}

void nmlp_config_write_experts(const nmlp_config *c, nmlp_json_writer *w) {
    const nmlp_family *f = c->features;
    if (f->experts == NMLP_EXPERTS_NONE) return;
    nmlp_json_put_int(w, f->experts == NMLP_EXPERTS_MIXTRAL ? "num_local_experts" : "num_experts", c->n_experts);
    nmlp_json_put_int(w, "num_experts_per_tok", c->experts_per_token);
    if (!f->normalise_experts) nmlp_json_put_bool(w, "norm_topk_prob", c->normalise_experts);
    if (!f->expert_intermediate) return;
    nmlp_json_put_int(w, "moe_intermediate_size", c->expert_intermediate);
    nmlp_json_put_int(w, "decoder_sparse_step", 1);
    nmlp_json_begin_array(w, "mlp_only_layers");
    for (int64_t l = 0; l < c->n_layers; l++)
        if (nmlp_layer_set_has(&c->dense_layers, l)) nmlp_json_put_int(w, NULL, l);
    nmlp_json_end_array(w);
}

bool nmlp_config_has_experts(const nmlp_config *c, int64_t layer) {
    return c->n_experts > 0 && !nmlp_layer_set_has(&c->dense_layers, layer);
}

int64_t nmlp_config_mlp_count(const nmlp_config *c, int64_t layer) {
    return nmlp_config_has_experts(c, layer) ? c->n_experts : 1;
}

int64_t nmlp_config_mlp_inner(const nmlp_config *c, int64_t layer) {
    return nmlp_config_has_experts(c, layer) ? c->expert_intermediate : c->intermediate;
}
