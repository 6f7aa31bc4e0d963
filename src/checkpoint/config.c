#include "checkpoint/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/quant_tensors.h"

enum { PATH_MAX_BYTES = 4096, DIM_MAX = 1 << 24, HEAD_DIM_MAX = 4096, COMPRESSED_VERSION = 1 };

static nmlp_status refuse(const nmlp_json_doc *doc, nmlp_err *err, const char *what, const char *found) {
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: %s \"%s\" is not supported", doc->origin, what, found);
}

/* `model_type` decides which model other programs compute; an edited `architectures` beside it would be something else
 * with the same tensors. */
static nmlp_status check_model_type(const nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *type = nmlp_json_get(doc->root, "model_type");
    bool own = !nmlp_json_is_null(nmlp_json_get(doc->root, "neuronmlp")) &&
               strcmp(nmlp_json_string(type), NMLP_COMPRESSED_MODEL_TYPE) == 0;
    if (own || nmlp_json_is_null(type) || strcmp(nmlp_json_string(type), c->family) == 0) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                     "%s: model_type \"%s\" does not go with architecture \"%s\", which is \"%s\"", doc->origin,
                     nmlp_json_string(type), c->architecture, c->family);
}

static nmlp_status read_family(nmlp_config *config, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *name = nmlp_json_first(nmlp_json_get(doc->root, "architectures"));
    if (!nmlp_json_is_string(name))
        return nmlp_fail(err, NMLP_E_MISSING, "%s: key \"architectures\" with one name is missing", doc->origin);
    const char *base = nmlp_json_string(name);
    if (strcmp(base, NMLP_COMPRESSED_ARCHITECTURE) == 0)
        NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, doc->root, "base_architecture", &base, err));
    snprintf(config->architecture, sizeof config->architecture, "%s", base);
    config->features = nmlp_family_find(base);
    if (config->features) {
        config->family = config->features->name;
        config->qkv_bias = config->features->qkv_bias;
        config->tied = config->features->tied;
        return check_model_type(config, doc, err);
    }
    nmlp_str names;
    nmlp_str_init(&names);
    nmlp_family_names(&names);
    nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: architecture \"%s\" is not supported; supported are %s", doc->origin,
              config->architecture, nmlp_str_text(&names));
    nmlp_str_fini(&names);
    return NMLP_E_UNSUPPORTED;
}

static nmlp_status read_sizes(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *root = doc->root;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "hidden_size", 1, DIM_MAX, &c->hidden, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "intermediate_size", 1, DIM_MAX, &c->intermediate, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "num_hidden_layers", 1, NMLP_LAYERS_MAX, &c->n_layers, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "num_attention_heads", 1, 4096, &c->n_heads, err));
    c->n_kv_heads = c->n_heads;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, root, "num_key_value_heads", 1, 4096, &c->n_kv_heads, err));
    c->head_dim = c->features->head_dim ? c->features->head_dim : c->hidden / c->n_heads;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, root, "head_dim", 1, HEAD_DIM_MAX, &c->head_dim, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "vocab_size", 1, DIM_MAX, &c->vocab, err));
    c->max_positions = 2048;
    NMLP_RETURN_IF_FAILED(
        nmlp_json_optional_int(doc, root, "max_position_embeddings", 1, INT64_C(1) << 31, &c->max_positions, err));
    c->rms_eps = c->features->rms_eps;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, root, "rms_norm_eps", &c->rms_eps, err));
    if (c->n_heads % c->n_kv_heads != 0)
        return nmlp_fail(err, NMLP_E_FORMAT,
                         "%s: num_attention_heads %lld is not a multiple of num_key_value_heads %lld", doc->origin,
                         (long long)c->n_heads, (long long)c->n_kv_heads);
    if (c->head_dim % 2 != 0 || c->head_dim == 0 || c->head_dim > HEAD_DIM_MAX)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: head_dim %lld must be even, from 2 to %d", doc->origin,
                         (long long)c->head_dim, HEAD_DIM_MAX);
    if (!(c->rms_eps >= 0)) return nmlp_fail(err, NMLP_E_FORMAT, "%s: rms_norm_eps must not be negative", doc->origin);
    return NMLP_OK;
}

/* Keys of other families that change what is computed, the number at which they do not (NaN: there is none), and
 * whether this family reads them. */
static nmlp_status refuse_other_keys(const nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_family *f = c->features;
    const struct {
        const char *key;
        double neutral;
        bool is_read;
    } keys[] = {{"embedding_multiplier", 1, f->multipliers},
                {"attention_multiplier", NAN, f->multipliers},
                {"residual_multiplier", 1, f->multipliers},
                {"logits_scaling", 1, f->multipliers},
                {"logit_scale", 1, false},
                {"attn_logit_softcapping", 0, f->score_softcap > 0},
                {"final_logit_softcapping", 0, f->has_logit_softcap},
                {"query_pre_attn_scalar", NAN, f->query_scalar > 0},
                {"use_bidirectional_attention", 0, false},
                {"clip_qkv", 0, false},
                {"num_experts", 0, f->experts != NMLP_EXPERTS_NONE},
                {"num_local_experts", 0, f->experts != NMLP_EXPERTS_NONE},
                {"n_routed_experts", 0, false},
                {"no_rope_layer_interval", NAN, f->nope_interval > 0},
                {"sliding_window_pattern", 1, f->window_rule == NMLP_WINDOW_PATTERN},
                {"use_qk_norm", 0, false},
                {"qk_layernorm", 0, false},
                {"scale_depth", NAN, false},
                {"scale_emb", 1, false},
                {"attn_output_multiplier", 1, false},
                {"lm_head_multiplier", 1, false}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const nmlp_json *value = nmlp_json_get(doc->root, keys[i].key);
        double number = nmlp_json_is_bool(value) ? nmlp_json_bool(value) : nmlp_json_number(value);
        bool is_plain = nmlp_json_is_number(value) || nmlp_json_is_bool(value);
        if (keys[i].is_read || nmlp_json_is_null(value) || (is_plain && number == keys[i].neutral)) continue;
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: key \"%s\" changes what the model computes and is not supported",
                         doc->origin, keys[i].key);
    }
    for (const nmlp_json *v = nmlp_json_first(nmlp_json_get(doc->root, "no_rope_layers")); v; v = nmlp_json_next(v))
        if (f->nope_interval == 0 && nmlp_json_number(v) != 1)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: layers without rope (no_rope_layers) are not supported",
                             doc->origin);
    return NMLP_OK;
}

/* A cap may be null: none. */
static nmlp_status read_cap(double *cap, const nmlp_json_doc *doc, const char *key, nmlp_err *err) {
    const nmlp_json *given = nmlp_json_get(doc->root, key);
    if (given && nmlp_json_is_null(given)) *cap = 0;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, doc->root, key, cap, err));
    if (*cap >= 0) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: %s must not be negative", doc->origin, key);
}

static nmlp_status read_scalars(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_family *f = c->features;
    const nmlp_json *root = doc->root;
    double query_scalar = f->query_scalar > 0 ? f->query_scalar : (double)c->head_dim;
    c->embedding_scale = f->scale_by_hidden ? sqrt((double)c->hidden) : 1;
    c->residual_scale = c->logit_divisor = 1;
    c->score_softcap = f->score_softcap;
    c->logit_softcap = f->logit_softcap;
    if (f->query_scalar > 0)
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, root, "query_pre_attn_scalar", &query_scalar, err));
    c->score_scale = 1 / sqrt(query_scalar);
    if (f->multipliers) {
        c->score_scale = 1;
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, root, "embedding_multiplier", &c->embedding_scale, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, root, "residual_multiplier", &c->residual_scale, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, root, "attention_multiplier", &c->score_scale, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, root, "logits_scaling", &c->logit_divisor, err));
    }
    if (f->score_softcap > 0) NMLP_RETURN_IF_FAILED(read_cap(&c->score_softcap, doc, "attn_logit_softcapping", err));
    if (f->has_logit_softcap) NMLP_RETURN_IF_FAILED(read_cap(&c->logit_softcap, doc, "final_logit_softcapping", err));
    if (c->score_scale > 0 && isfinite(c->score_scale) && c->logit_divisor > 0) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT,
                     "%s: attention_multiplier, logits_scaling and query_pre_attn_scalar must be "
                     "positive",
                     doc->origin);
}

static nmlp_status read_activation(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    bool gelu = c->features->activation == NMLP_ACTIVATION_GELU_TANH;
    const nmlp_json *act = nmlp_json_get(doc->root, gelu ? "hidden_activation" : "hidden_act");
    const char *name = gelu ? "gelu_pytorch_tanh" : "silu";
    c->activation = c->features->activation;
    if (nmlp_json_is_null(act) || strcmp(nmlp_json_string(act), name) == 0) return NMLP_OK;
    return refuse(doc, err, nmlp_json_key(act), nmlp_json_string(act));
}

static nmlp_status read_flags(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    bool mlp_bias = false;
    bool attention_bias = false;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "tie_word_embeddings", &c->tied, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "mlp_bias", &mlp_bias, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "attention_bias", &attention_bias, err));
    if (mlp_bias) return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: mlp_bias true is not supported", doc->origin);
    if (attention_bias && c->features->fused)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: attention_bias true is not supported in a %s model", doc->origin,
                         c->family);
    if (attention_bias) c->qkv_bias = c->o_bias = true;
    NMLP_RETURN_IF_FAILED(nmlp_quant_config_check(doc, &c->quantised, err));
    NMLP_RETURN_IF_FAILED(read_activation(c, doc, err));
    NMLP_RETURN_IF_FAILED(refuse_other_keys(c, doc, err));
    NMLP_RETURN_IF_FAILED(read_scalars(c, doc, err));
    NMLP_RETURN_IF_FAILED(nmlp_config_read_experts(c, doc, err));
    return nmlp_config_read_layers(c, doc, err);
}

static void read_dtype(nmlp_config *c, const nmlp_json_doc *doc) {
    const nmlp_json *value = nmlp_json_get(doc->root, "dtype");
    if (nmlp_json_is_null(value)) value = nmlp_json_get(doc->root, "torch_dtype");
    const char *name = nmlp_json_string(value);
    c->dtype = strcmp(name, "float32") == 0   ? NMLP_DTYPE_F32
               : strcmp(name, "float16") == 0 ? NMLP_DTYPE_F16
                                              : NMLP_DTYPE_BF16;
}

static nmlp_status add_stop_id(nmlp_config *c, const nmlp_json_doc *doc, const nmlp_json *value, nmlp_err *err) {
    int64_t id;
    if (!nmlp_json_int_in(value, 0, DIM_MAX, &id))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"eos_token_id\" must be a token id or a list of them",
                         doc->origin);
    for (int i = 0; i < c->n_stop_ids; i++)
        if (c->stop_ids[i] == id) return NMLP_OK;
    if (c->n_stop_ids == NMLP_STOP_IDS_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d stop tokens", doc->origin, NMLP_STOP_IDS_MAX);
    c->stop_ids[c->n_stop_ids++] = id;
    return NMLP_OK;
}

static nmlp_status read_stop_ids(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(doc->root, "eos_token_id");
    if (nmlp_json_is_null(value)) return NMLP_OK;
    if (!nmlp_json_is_array(value)) return add_stop_id(c, doc, value, err);
    for (const nmlp_json *v = nmlp_json_first(value); v; v = nmlp_json_next(v))
        NMLP_RETURN_IF_FAILED(add_stop_id(c, doc, v, err));
    return NMLP_OK;
}

static nmlp_status read_compressed(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *object = nmlp_json_get(doc->root, "neuronmlp");
    int64_t version;
    if (nmlp_json_is_null(object)) return NMLP_OK;
    c->compressed = true;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, object, "version", 0, 1 << 20, &version, err));
    if (version != COMPRESSED_VERSION)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: compressed format version %lld; this program reads version %d",
                         doc->origin, (long long)version, COMPRESSED_VERSION);
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, object, "ratio", &c->ratio, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, object, "slices", 1, NMLP_SLICES_MAX, &c->slices, err));
    if (c->slices == 1) c->slices = 0;
    if (c->slices > 0 && c->intermediate % c->slices != 0)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: %lld slices do not divide an intermediate size of %lld", doc->origin,
                         (long long)c->slices, (long long)c->intermediate);
    return nmlp_json_optional_int(doc, object, "tile", 1, DIM_MAX, &c->tile, err);
}

nmlp_status nmlp_config_parse(nmlp_config *config, const nmlp_json_doc *doc, nmlp_err *err) {
    *config = (nmlp_config){.bos_id = -1};
    if (!nmlp_json_is_object(doc->root)) return nmlp_fail(err, NMLP_E_FORMAT, "%s: is not a JSON object", doc->origin);
    NMLP_RETURN_IF_FAILED(read_family(config, doc, err));
    NMLP_RETURN_IF_FAILED(read_sizes(config, doc, err));
    NMLP_RETURN_IF_FAILED(nmlp_config_read_rope(config, doc, err));
    NMLP_RETURN_IF_FAILED(read_flags(config, doc, err));
    read_dtype(config, doc);
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, doc->root, "bos_token_id", 0, DIM_MAX, &config->bos_id, err));
    NMLP_RETURN_IF_FAILED(read_stop_ids(config, doc, err));
    return read_compressed(config, doc, err);
}

static nmlp_status add_generation_config(nmlp_config *config, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_json_doc doc;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "generation_config.json", err));
    if (!nmlp_file_exists(path)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    nmlp_status st = read_stop_ids(config, &doc, err);
    nmlp_json_free(&doc);
    return st;
}

nmlp_status nmlp_config_load(nmlp_config *config, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_json_doc doc;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "config.json", err));
    if (!nmlp_file_exists(path)) {
        nmlp_fail(err, NMLP_E_MISSING, "%s: not found", path);
        nmlp_fail_hint(err, "MODEL is a directory with config.json and *.safetensors, as Hugging Face lays them out");
        return NMLP_E_MISSING;
    }
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    nmlp_status st = nmlp_config_parse(config, &doc, err);
    nmlp_json_free(&doc);
    if (st == NMLP_OK) st = add_generation_config(config, dir, err);
    return st;
}
