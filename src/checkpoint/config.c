#include "checkpoint/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "checkpoint/quant_tensors.h"

enum { PATH_MAX_BYTES = 4096, DIM_MAX = 1 << 24, HEAD_DIM_MAX = 4096, COMPRESSED_VERSION = 1 };

/* What tells one supported architecture from another. */
static const struct family {
    const char *architecture;
    const char *family;
    bool qkv_bias;
    bool qk_norm;
} families[] = {
    {"LlamaForCausalLM", "llama", false, false},
    {"MistralForCausalLM", "mistral", false, false},
    {"Qwen2ForCausalLM", "qwen2", true, false},
    {"Qwen3ForCausalLM", "qwen3", false, true},
};

enum { N_FAMILIES = sizeof families / sizeof families[0] };

static nmlp_status refuse(const nmlp_json_doc *doc, nmlp_err *err, const char *what, const char *found) {
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: %s \"%s\" is not supported", doc->origin, what, found);
}

/* A compressed model has an architecture of its own, so that programs that do not know factors refuse it instead of
 * running it with random MLPs; what it was made from stands in a key of its own. Checkpoints of before name the
 * original. */
static const char compressed_architecture[] = "NeuronmlpForCausalLM";
static const char compressed_model_type[] = "neuronmlp";

/* `model_type` decides which model other programs compute; an edited `architectures` beside it would be something else
 * with the same tensors. */
static nmlp_status check_model_type(const nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *type = nmlp_json_get(doc->root, "model_type");
    bool own = !nmlp_json_is_null(nmlp_json_get(doc->root, "neuronmlp")) &&
               strcmp(nmlp_json_string(type), compressed_model_type) == 0;
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
    if (strcmp(base, compressed_architecture) == 0)
        NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, doc->root, "base_architecture", &base, err));
    snprintf(config->architecture, sizeof config->architecture, "%s", base);
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (strcmp(families[i].architecture, config->architecture) != 0) continue;
        config->family = families[i].family;
        config->qkv_bias = families[i].qkv_bias;
        config->qk_norm = families[i].qk_norm;
        return check_model_type(config, doc, err);
    }
    return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                     "%s: architecture \"%s\" is not supported; supported are LlamaForCausalLM, MistralForCausalLM, "
                     "Qwen2ForCausalLM, Qwen3ForCausalLM",
                     doc->origin, config->architecture);
}

static nmlp_status read_sizes(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *root = doc->root;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "hidden_size", 1, DIM_MAX, &c->hidden, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "intermediate_size", 1, DIM_MAX, &c->intermediate, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "num_hidden_layers", 1, 4096, &c->n_layers, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "num_attention_heads", 1, 4096, &c->n_heads, err));
    c->n_kv_heads = c->n_heads;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, root, "num_key_value_heads", 1, 4096, &c->n_kv_heads, err));
    c->head_dim = c->hidden / c->n_heads;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, root, "head_dim", 1, HEAD_DIM_MAX, &c->head_dim, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, root, "vocab_size", 1, DIM_MAX, &c->vocab, err));
    c->max_positions = 2048;
    NMLP_RETURN_IF_FAILED(
        nmlp_json_optional_int(doc, root, "max_position_embeddings", 1, INT64_C(1) << 31, &c->max_positions, err));
    c->rms_eps = 1e-6;
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

static nmlp_status read_llama3(nmlp_rope_config *rope, const nmlp_json_doc *doc, const nmlp_json *scaling,
                               nmlp_err *err) {
    rope->kind = NMLP_ROPE_LLAMA3;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, scaling, "factor", &rope->factor, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, scaling, "low_freq_factor", &rope->low_freq_factor, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, scaling, "high_freq_factor", &rope->high_freq_factor, err));
    NMLP_RETURN_IF_FAILED(
        nmlp_json_need_number(doc, scaling, "original_max_position_embeddings", &rope->original_max_positions, err));
    if (!(rope->factor > 0 && rope->high_freq_factor > rope->low_freq_factor && rope->low_freq_factor > 0 &&
          rope->original_max_positions > 0))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: llama3 rope scaling has factors that make no sense", doc->origin);
    return NMLP_OK;
}

static nmlp_status read_rope(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    c->rope = (nmlp_rope_config){.kind = NMLP_ROPE_DEFAULT, .theta = 10000};
    const nmlp_json *newer = nmlp_json_get(doc->root, "rope_parameters");
    const nmlp_json *scaling = nmlp_json_get(doc->root, "rope_scaling");
    if (nmlp_json_is_object(newer) && nmlp_json_is_object(scaling) && !nmlp_json_equal(newer, scaling)) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: rope_scaling and rope_parameters are both set and differ", doc->origin);
        nmlp_fail_hint(err, "keep the one that is meant, with rope_theta, and remove the other");
        return NMLP_E_UNSUPPORTED;
    }
    if (nmlp_json_is_object(newer)) scaling = newer;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, doc->root, "rope_theta", &c->rope.theta, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "rope_theta", &c->rope.theta, err));
    if (!(c->rope.theta > 0)) return nmlp_fail(err, NMLP_E_FORMAT, "%s: rope_theta must be positive", doc->origin);
    double partial = 1;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, doc->root, "partial_rotary_factor", &partial, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, scaling, "partial_rotary_factor", &partial, err));
    if (partial != 1)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: partial_rotary_factor %g is not supported, only 1", doc->origin,
                         partial);
    if (!nmlp_json_is_object(scaling)) return NMLP_OK;
    const nmlp_json *kind = nmlp_json_get(scaling, "rope_type");
    if (nmlp_json_is_null(kind)) kind = nmlp_json_get(scaling, "type"); /* older spelling */
    const char *name = nmlp_json_is_null(kind) ? "default" : nmlp_json_string(kind);
    if (strcmp(name, "default") == 0) return NMLP_OK;
    if (strcmp(name, "llama3") == 0) return read_llama3(&c->rope, doc, scaling, err);
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: rope scaling \"%s\" is not supported; supported are default, llama3",
                     doc->origin, name);
}

/* A window that no text of this model outgrows is none. */
static nmlp_status refuse_sliding_window(const nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    bool is_qwen = strncmp(c->family, "qwen", 4) == 0;
    bool is_mistral = strcmp(c->family, "mistral") == 0;
    bool used = !is_qwen;  /* Qwen says so in a key of its own; Mistral by giving a window */
    int64_t window = 4096; /* what Mistral's configuration means without the key; null means none */
    const nmlp_json *given = nmlp_json_get(doc->root, "sliding_window");
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "use_sliding_window", &used, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, doc->root, "sliding_window", 1, INT64_C(1) << 40, &window, err));
    bool has_window = given ? !nmlp_json_is_null(given) : is_mistral;
    if (used && has_window && window < c->max_positions) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: sliding-window attention is not supported (sliding_window is %s%lld)",
                  doc->origin, given ? "" : "absent, which means ", (long long)window);
        if (!given) nmlp_fail_hint(err, "if the model has no window, write \"sliding_window\": null");
        return NMLP_E_UNSUPPORTED;
    }
    const nmlp_json *types = nmlp_json_get(doc->root, "layer_types");
    for (const nmlp_json *t = nmlp_json_first(types); t; t = nmlp_json_next(t)) {
        if (strcmp(nmlp_json_string(t), "full_attention") != 0)
            return refuse(doc, err, "layer type", nmlp_json_string(t));
    }
    return NMLP_OK;
}

/* Keys of other families that change what is computed, and the number at which they do not (NaN: there is none). */
static nmlp_status refuse_other_keys(const nmlp_json_doc *doc, nmlp_err *err) {
    static const struct {
        const char *key;
        double neutral;
    } keys[] = {{"embedding_multiplier", 1},
                {"attention_multiplier", NAN},
                {"residual_multiplier", 1},
                {"logits_scaling", 1},
                {"logit_scale", 1},
                {"attn_logit_softcapping", 0},
                {"final_logit_softcapping", 0},
                {"query_pre_attn_scalar", NAN},
                {"clip_qkv", 0},
                {"num_experts", 0},
                {"num_local_experts", 0},
                {"n_routed_experts", 0},
                {"no_rope_layer_interval", NAN},
                {"sliding_window_pattern", 1},
                {"use_qk_norm", 0},
                {"qk_layernorm", 0},
                {"scale_depth", NAN},
                {"scale_emb", 1},
                {"attn_output_multiplier", 1},
                {"lm_head_multiplier", 1}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const nmlp_json *value = nmlp_json_get(doc->root, keys[i].key);
        double number = nmlp_json_is_bool(value) ? nmlp_json_bool(value) : nmlp_json_number(value);
        bool is_plain = nmlp_json_is_number(value) || nmlp_json_is_bool(value);
        if (nmlp_json_is_null(value) || (is_plain && number == keys[i].neutral)) continue;
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: key \"%s\" changes what the model computes and is not supported",
                         doc->origin, keys[i].key);
    }
    for (const nmlp_json *v = nmlp_json_first(nmlp_json_get(doc->root, "no_rope_layers")); v; v = nmlp_json_next(v))
        if (nmlp_json_number(v) != 1)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: layers without rope (no_rope_layers) are not supported",
                             doc->origin);
    return NMLP_OK;
}

static nmlp_status read_flags(nmlp_config *c, const nmlp_json_doc *doc, nmlp_err *err) {
    bool mlp_bias = false;
    bool attention_bias = false;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "tie_word_embeddings", &c->tied, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "mlp_bias", &mlp_bias, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "attention_bias", &attention_bias, err));
    if (mlp_bias) return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: mlp_bias true is not supported", doc->origin);
    if (attention_bias) c->qkv_bias = c->o_bias = true;
    NMLP_RETURN_IF_FAILED(nmlp_quant_config_check(doc, &c->quantised, err));
    const nmlp_json *act = nmlp_json_get(doc->root, "hidden_act");
    if (!nmlp_json_is_null(act) && strcmp(nmlp_json_string(act), "silu") != 0)
        return refuse(doc, err, "hidden_act", nmlp_json_string(act));
    NMLP_RETURN_IF_FAILED(refuse_other_keys(doc, err));
    return refuse_sliding_window(c, doc, err);
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
    return nmlp_json_optional_int(doc, object, "tile", 1, DIM_MAX, &c->tile, err);
}

nmlp_status nmlp_config_parse(nmlp_config *config, const nmlp_json_doc *doc, nmlp_err *err) {
    *config = (nmlp_config){.bos_id = -1};
    if (!nmlp_json_is_object(doc->root)) return nmlp_fail(err, NMLP_E_FORMAT, "%s: is not a JSON object", doc->origin);
    NMLP_RETURN_IF_FAILED(read_family(config, doc, err));
    NMLP_RETURN_IF_FAILED(read_sizes(config, doc, err));
    NMLP_RETURN_IF_FAILED(read_rope(config, doc, err));
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

static void write_rope(const nmlp_config *c, nmlp_json_writer *w) {
    nmlp_json_put_number(w, "rope_theta", c->rope.theta);
    if (c->rope.kind == NMLP_ROPE_DEFAULT) {
        nmlp_json_put_null(w, "rope_scaling");
        return;
    }
    nmlp_json_begin_object(w, "rope_scaling");
    nmlp_json_put_string(w, "rope_type", "llama3");
    nmlp_json_put_number(w, "factor", c->rope.factor);
    nmlp_json_put_number(w, "low_freq_factor", c->rope.low_freq_factor);
    nmlp_json_put_number(w, "high_freq_factor", c->rope.high_freq_factor);
    nmlp_json_put_number(w, "original_max_position_embeddings", c->rope.original_max_positions);
    nmlp_json_end_object(w);
}

static void write_ids(const nmlp_config *c, nmlp_json_writer *w) {
    if (c->bos_id >= 0) nmlp_json_put_int(w, "bos_token_id", c->bos_id);
    if (c->n_stop_ids == 1) nmlp_json_put_int(w, "eos_token_id", c->stop_ids[0]);
    if (c->n_stop_ids <= 1) return;
    nmlp_json_begin_array(w, "eos_token_id");
    for (int i = 0; i < c->n_stop_ids; i++) nmlp_json_put_int(w, NULL, c->stop_ids[i]);
    nmlp_json_end_array(w);
}

static void write_quantisation(const nmlp_tensor_spec *specs, size_t n, nmlp_str *out) {
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_tensor_specs_quant_config(specs, n, &text);
    if (text.failed) out->failed = true;
    if (text.len > 0) nmlp_str_printf(out, ",\"quantization_config\":%s", nmlp_str_text(&text));
    nmlp_str_fini(&text);
}

void nmlp_config_write(const nmlp_config *c, const char *extra, const nmlp_tensor_spec *specs, size_t n_specs,
                       nmlp_str *out) {
    static const char *const dtype_names[] = {"float32", "bfloat16", "float16"};
    nmlp_json_writer w;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_begin_array(&w, "architectures");
    nmlp_json_put_string(&w, NULL, extra ? compressed_architecture : c->architecture);
    nmlp_json_end_array(&w);
    nmlp_json_put_string(&w, "model_type", extra ? compressed_model_type : c->family);
    if (extra) nmlp_json_put_string(&w, "base_architecture", c->architecture);
    if (strcmp(c->family, "mistral") == 0) nmlp_json_put_null(&w, "sliding_window"); /* absent would mean 4096 */
    nmlp_json_put_int(&w, "hidden_size", c->hidden);
    nmlp_json_put_int(&w, "intermediate_size", c->intermediate);
    nmlp_json_put_int(&w, "num_hidden_layers", c->n_layers);
    nmlp_json_put_int(&w, "num_attention_heads", c->n_heads);
    nmlp_json_put_int(&w, "num_key_value_heads", c->n_kv_heads);
    nmlp_json_put_int(&w, "head_dim", c->head_dim);
    nmlp_json_put_int(&w, "vocab_size", c->vocab);
    nmlp_json_put_int(&w, "max_position_embeddings", c->max_positions);
    nmlp_json_put_number(&w, "rms_norm_eps", c->rms_eps);
    nmlp_json_put_string(&w, "hidden_act", "silu");
    nmlp_json_put_bool(&w, "tie_word_embeddings", c->tied);
    nmlp_json_put_bool(&w, "attention_bias", c->o_bias);
    nmlp_json_put_string(&w, "torch_dtype", dtype_names[c->dtype]);
    write_rope(c, &w);
    write_ids(c, &w);
    if (extra) {
        nmlp_str_puts(out, ",\"neuronmlp\":");
        nmlp_str_puts(out, extra);
    }
    write_quantisation(specs, n_specs, out);
    nmlp_json_end_object(&w);
    nmlp_str_putc(out, '\n');
}

nmlp_status nmlp_config_save(const nmlp_config *config, const char *extra, const nmlp_tensor_spec *specs,
                             size_t n_specs, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_config_write(config, extra, specs, n_specs, &text);
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_path_join(path, sizeof path, dir, "config.json", err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err);
    nmlp_str_fini(&text);
    return st;
}
