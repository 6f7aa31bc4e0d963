/* What differs from layer to layer: windows and layers without rope. */
#include <string.h>

#include "checkpoint/config_internal.h"

static nmlp_status read_nope(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *list = nmlp_json_get(doc->root, "no_rope_layers");
    int64_t interval = c->features->nope_interval;
    int64_t l = 0;
    if (!nmlp_json_is_null(list)) {
        if ((int64_t)nmlp_json_count(list) != c->n_layers)
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: no_rope_layers must have one number for each of %lld layers",
                             doc->origin, (long long)c->n_layers);
        for (const nmlp_json *v = nmlp_json_first(list); v; v = nmlp_json_next(v), l++)
            if (nmlp_json_number(v) == 0) nmlp_layer_set_add(&c->nope_layers, l);
        return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(
        nmlp_json_optional_int(doc, doc->root, "no_rope_layer_interval", 1, NMLP_LAYERS_MAX, &interval, err));
    for (; l < c->n_layers; l++)
        if ((l + 1) % interval == 0) nmlp_layer_set_add(&c->nope_layers, l);
    return NMLP_OK;
}

/* By the family's rule. */
static nmlp_status add_windows(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    nmlp_window_rule rule = c->features->window_rule;
    int64_t pattern = c->features->window_pattern, first = 28;
    NMLP_RETURN_IF_FAILED(
        nmlp_json_optional_int(doc, doc->root, "sliding_window_pattern", 1, NMLP_LAYERS_MAX, &pattern, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, doc->root, "max_window_layers", 0, INT32_MAX, &first, err));
    for (int64_t l = 0; l < c->n_layers; l++) {
        bool has = rule == NMLP_WINDOW_ALL || rule == NMLP_WINDOW_IF_USED ||
                   (rule == NMLP_WINDOW_PATTERN && (l + 1) % pattern != 0) ||
                   (rule == NMLP_WINDOW_LATE && l >= first) ||
                   (rule == NMLP_WINDOW_NO_ROPE && nmlp_layer_set_has(&c->nope_layers, l));
        if (has) nmlp_layer_set_add(&c->window_layers, l);
    }
    return NMLP_OK;
}

static nmlp_status read_layer_types(nmlp_config *c, const nmlp_json_doc *doc, const nmlp_json *types, nmlp_err *err) {
    nmlp_layer_set said = {0};
    int64_t l = 0;
    if ((int64_t)nmlp_json_count(types) != c->n_layers)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: layer_types must name each of %lld layers", doc->origin,
                         (long long)c->n_layers);
    for (const nmlp_json *t = nmlp_json_first(types); t; t = nmlp_json_next(t), l++) {
        const char *name = nmlp_json_string(t);
        bool sliding = strcmp(name, "sliding_attention") == 0;
        if (!sliding && strcmp(name, "full_attention") != 0)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: layer type \"%s\" is not supported", doc->origin, name);
        if (sliding) nmlp_layer_set_add(&said, l);
        if (!c->features->layer_types && sliding != nmlp_layer_set_has(&c->window_layers, l))
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: layer_types has \"%s\", which a %s model does not read",
                             doc->origin, name, c->family);
    }
    c->window_layers = said;
    return NMLP_OK;
}

static bool has_use_key(const nmlp_family *f) {
    return f->window_rule == NMLP_WINDOW_IF_USED || f->window_rule == NMLP_WINDOW_LATE ||
           f->window_rule == NMLP_WINDOW_NO_ROPE;
}

static nmlp_status read_window(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_family *f = c->features;
    const nmlp_json *given = nmlp_json_get(doc->root, "sliding_window");
    bool used = !has_use_key(f);
    int64_t window = f->window;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "use_sliding_window", &used, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, doc->root, "sliding_window", 1, INT64_C(1) << 40, &window, err));
    if (given && nmlp_json_is_null(given)) window = 0;
    if (f->window_rule == NMLP_WINDOW_NEVER && used && window > 0 && window < c->max_positions)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: sliding_window is %lld, but a %s model has no sliding-window attention", doc->origin,
                         (long long)window, c->family);
    if (used && f->window_rule != NMLP_WINDOW_NEVER) c->window = window;
    return NMLP_OK;
}

/* Said by layer_types, or by the family where there are none. */
static nmlp_status check_windows(const nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    for (int64_t l = 0; c->window == 0 && l < c->n_layers; l++)
        if (nmlp_layer_set_has(&c->window_layers, l))
            return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                             "%s: layer %lld has sliding_attention, but sliding_window says there is no window",
                             doc->origin, (long long)l);
    return NMLP_OK;
}

nmlp_status nmlp_config_read_layers(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *types = nmlp_json_get(doc->root, "layer_types");
    if (c->features->nope_interval > 0) NMLP_RETURN_IF_FAILED(read_nope(c, doc, err));
    NMLP_RETURN_IF_FAILED(read_window(c, doc, err));
    if (c->window > 0 || c->features->local_theta > 0) NMLP_RETURN_IF_FAILED(add_windows(c, doc, err));
    if (!nmlp_json_is_null(types)) NMLP_RETURN_IF_FAILED(read_layer_types(c, doc, types, err));
    return check_windows(c, doc, err);
}

void nmlp_config_write_layers(const nmlp_config *c, nmlp_json_writer *w) {
    const nmlp_family *f = c->features;
    if (f->nope_interval > 0) {
        nmlp_json_begin_array(w, "no_rope_layers");
        for (int64_t l = 0; l < c->n_layers; l++)
            nmlp_json_put_int(w, NULL, nmlp_layer_set_has(&c->nope_layers, l) ? 0 : 1);
        nmlp_json_end_array(w);
    }
    if (f->window_rule == NMLP_WINDOW_NEVER) return;
    if (has_use_key(f)) nmlp_json_put_bool(w, "use_sliding_window", c->window > 0);
    if (c->window > 0)
        nmlp_json_put_int(w, "sliding_window", c->window);
    else
        nmlp_json_put_null(w, "sliding_window"); /* absent would mean the family's */
    if (!f->layer_types) return;
    nmlp_json_begin_array(w, "layer_types");
    for (int64_t l = 0; l < c->n_layers; l++)
        nmlp_json_put_string(w, NULL,
                             nmlp_layer_set_has(&c->window_layers, l) ? "sliding_attention" : "full_attention");
    nmlp_json_end_array(w);
}

int64_t nmlp_config_window(const nmlp_config *c, int64_t layer) {
    return nmlp_layer_set_has(&c->window_layers, layer) && c->window < c->max_positions ? c->window : 0;
}

const nmlp_rope_config *nmlp_config_rope(const nmlp_config *c, int64_t layer) {
    if (nmlp_layer_set_has(&c->nope_layers, layer)) return NULL;
    return c->features->local_theta > 0 && nmlp_layer_set_has(&c->window_layers, layer) ? &c->local_rope : &c->rope;
}

static bool has_own_layers(const nmlp_config *c, const nmlp_layer_set *set) {
    for (int64_t l = 0; l < c->n_layers; l++)
        if (nmlp_layer_set_has(set, l)) return true;
    return false;
}

const char *nmlp_config_beyond_plain(const nmlp_config *c) {
    const nmlp_family *f = c->features;
    if (c->n_experts > 0) return "experts";
    if (c->slices > 0) return "factors of slices of the MLP";
    if (c->attention_factored) return "factorised attention";
    for (int64_t l = 0; l < c->n_layers; l++)
        if (nmlp_config_window(c, l) > 0) return "sliding windows";
    if (has_own_layers(c, &c->nope_layers)) return "layers without rope";
    if (f->local_theta > 0) return "two kinds of rope";
    if (f->norm_place != NMLP_NORM_BEFORE) return "norms after attention and MLP";
    if (f->norm_plus_one) return "norms that multiply by 1 + weight";
    if (f->qk_norm == NMLP_QK_NORM_ROW) return "norms over all heads of queries and keys";
    if (c->activation != NMLP_ACTIVATION_SILU) return "GELU as activation";
    if (c->embedding_scale != 1 || c->residual_scale != 1 || c->logit_divisor != 1) return "scaled residuals or logits";
    if (c->score_softcap != 0 || c->logit_softcap != 0) return "capped scores or logits";
    if (c->score_scale * c->score_scale * (double)c->head_dim < 0.999999 ||
        c->score_scale * c->score_scale * (double)c->head_dim > 1.000001)
        return "scores scaled by something else than the size of a head";
    if (c->rope_dim != c->head_dim) return "partial rotary embeddings";
    if (c->rope.query_growth != 0) return "queries that grow with their position";
    return NULL;
}
