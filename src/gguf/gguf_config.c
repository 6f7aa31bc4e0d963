#include "gguf/gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"

enum { DIM_MAX = 1 << 24, KEY_BYTES = 96 };

/* Architectures that are known, and what Hugging Face calls them. */
static const struct known {
    const char *gguf;
    const char *hf;
    bool in_pairs;
} architectures[] = {
    {"llama", "LlamaForCausalLM", true}, {"qwen2", "Qwen2ForCausalLM", false}, {"qwen3", "Qwen3ForCausalLM", false}};

static const struct known *find_architecture(const char *name) {
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++)
        if (strcmp(name, architectures[i].gguf) == 0) return &architectures[i];
    return NULL;
}

double nmlp_gguf_rope_divisor(const nmlp_rope_config *r, int64_t head_dim, int64_t i) {
    double length = 2 * 3.14159265358979323846 * pow(r->theta, 2.0 * (double)i / (double)head_dim);
    double smooth =
        (r->original_max_positions / length - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    smooth = fmin(1, fmax(0, smooth));
    return 1 / ((1 - smooth) / r->factor + smooth);
}

struct sizes {
    int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, positions;
    double eps, theta;
    bool tied;
    bool llama3;           /* rope scaled by a table */
    nmlp_rope_config rope; /* its parameters */
};

static nmlp_status need(nmlp_gguf *file, const char *arch, const char *name, int64_t *out, nmlp_err *err) {
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    if (!nmlp_gguf_find(file, key))
        return nmlp_fail(err, NMLP_E_MISSING, "%s: key \"%s\" is missing", file->origin, key);
    return nmlp_gguf_get_int(file, key, 1, DIM_MAX, out, err);
}

static nmlp_status optional(nmlp_gguf *file, const char *arch, const char *name, int64_t *out, nmlp_err *err) {
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    return nmlp_gguf_get_int(file, key, 1, INT64_C(1) << 31, out, err);
}

static nmlp_status read_sizes(struct sizes *s, nmlp_gguf *file, const char *arch, nmlp_err *err) {
    char key[KEY_BYTES];
    int64_t value_dim, rotated;
    NMLP_RETURN_IF_FAILED(need(file, arch, "embedding_length", &s->hidden, err));
    NMLP_RETURN_IF_FAILED(need(file, arch, "feed_forward_length", &s->intermediate, err));
    NMLP_RETURN_IF_FAILED(need(file, arch, "block_count", &s->layers, err));
    NMLP_RETURN_IF_FAILED(need(file, arch, "attention.head_count", &s->heads, err));
    s->kv_heads = s->heads;
    s->positions = 2048;
    s->head_dim = s->hidden / s->heads;
    NMLP_RETURN_IF_FAILED(optional(file, arch, "attention.head_count_kv", &s->kv_heads, err));
    NMLP_RETURN_IF_FAILED(optional(file, arch, "context_length", &s->positions, err));
    NMLP_RETURN_IF_FAILED(optional(file, arch, "attention.key_length", &s->head_dim, err));
    value_dim = rotated = s->head_dim;
    NMLP_RETURN_IF_FAILED(optional(file, arch, "attention.value_length", &value_dim, err));
    NMLP_RETURN_IF_FAILED(optional(file, arch, "rope.dimension_count", &rotated, err));
    if (value_dim != s->head_dim || rotated != s->head_dim || s->head_dim < 2 || s->head_dim % 2 != 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: keys of %" PRId64 ", values of %" PRId64 " and %" PRId64
                         " rotated dimensions; they must be equal and even",
                         file->origin, s->head_dim, value_dim, rotated);
    s->eps = 1e-5;
    s->theta = 10000;
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_number(file, key, &s->eps, err));
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    return nmlp_gguf_get_number(file, key, &s->theta, err);
}

static nmlp_status refuse_scaling(nmlp_gguf *file, const char *arch, nmlp_err *err) {
    char key[KEY_BYTES];
    const char *type;
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_string(file, key, &type, err));
    if (!type || strcmp(type, "none") == 0) return NMLP_OK;
    double factor = 1;
    snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_number(file, key, &factor, err));
    if (strcmp(type, "linear") == 0 && factor == 1) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: rope scaling \"%s\" is not supported", file->origin, type);
}

/* Files have the divisors of frequencies as a table, configurations the parameters it was made with: those that our
 * own files say, or those of the published models, if they give the same table. */
static nmlp_status read_rope_table(struct sizes *s, const nmlp_gguf *file, nmlp_err *err) {
    const nmlp_gguf_tensor *t = nmlp_gguf_find_tensor(file, "rope_freqs.weight");
    s->rope = (nmlp_rope_config){.kind = NMLP_ROPE_LLAMA3,
                                 .theta = s->theta,
                                 .factor = 1,
                                 .low_freq_factor = 1,
                                 .high_freq_factor = 4,
                                 .original_max_positions = 8192};
    if (!t) return NMLP_OK;
    bool same = t->type == NMLP_GGUF_TYPE_F32 && t->rows == 1 && t->cols == s->head_dim / 2;
    for (int64_t i = 0; same && i < t->cols; i++) {
        float value;
        memcpy(&value, t->data + (size_t)i * sizeof value, sizeof value);
        s->rope.factor = fmax(s->rope.factor, (double)value);
    }
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_number(file, NMLP_GGUF_KEY_FACTOR, &s->rope.factor, err));
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_number(file, NMLP_GGUF_KEY_LOW, &s->rope.low_freq_factor, err));
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_number(file, NMLP_GGUF_KEY_HIGH, &s->rope.high_freq_factor, err));
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_number(file, NMLP_GGUF_KEY_ORIGINAL, &s->rope.original_max_positions, err));
    for (int64_t i = 0; same && i < t->cols; i++) {
        float value;
        memcpy(&value, t->data + (size_t)i * sizeof value, sizeof value);
        double want = nmlp_gguf_rope_divisor(&s->rope, s->head_dim, i);
        same = fabs((double)value - want) <= 1e-3 * want;
    }
    if (!same)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: tensor rope_freqs.weight is not the table of llama3 rope scaling", file->origin);
    s->llama3 = true;
    return NMLP_OK;
}

static void put_rope(const struct sizes *s, nmlp_json_writer *w) {
    nmlp_json_put_number(w, "rope_theta", s->theta);
    if (!s->llama3) return;
    nmlp_json_begin_object(w, "rope_scaling");
    nmlp_json_put_string(w, "rope_type", "llama3");
    nmlp_json_put_number(w, "factor", s->rope.factor);
    nmlp_json_put_number(w, "low_freq_factor", s->rope.low_freq_factor);
    nmlp_json_put_number(w, "high_freq_factor", s->rope.high_freq_factor);
    nmlp_json_put_number(w, "original_max_position_embeddings", s->rope.original_max_positions);
    nmlp_json_end_object(w);
}

static nmlp_status put_ids(nmlp_gguf *file, nmlp_json_writer *w, nmlp_err *err) {
    int64_t bos = -1, eos = -1;
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_int(file, "tokenizer.ggml.bos_token_id", 0, DIM_MAX, &bos, err));
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_int(file, "tokenizer.ggml.eos_token_id", 0, DIM_MAX, &eos, err));
    if (bos >= 0) nmlp_json_put_int(w, "bos_token_id", bos);
    if (eos >= 0) nmlp_json_put_int(w, "eos_token_id", eos);
    return NMLP_OK;
}

/* As a text that the reader of config.json understands, so that what it refuses is refused here too. */
static nmlp_status write_text(nmlp_gguf *file, const struct known *known, const struct sizes *s, nmlp_str *text,
                              nmlp_err *err) {
    nmlp_json_writer w;
    nmlp_json_writer_init(&w, text);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_begin_array(&w, "architectures");
    nmlp_json_put_string(&w, NULL, known->hf);
    nmlp_json_end_array(&w);
    nmlp_json_put_int(&w, "hidden_size", s->hidden);
    nmlp_json_put_int(&w, "intermediate_size", s->intermediate);
    nmlp_json_put_int(&w, "num_hidden_layers", s->layers);
    nmlp_json_put_int(&w, "num_attention_heads", s->heads);
    nmlp_json_put_int(&w, "num_key_value_heads", s->kv_heads);
    nmlp_json_put_int(&w, "head_dim", s->head_dim);
    nmlp_json_put_int(&w, "vocab_size", s->vocab);
    nmlp_json_put_int(&w, "max_position_embeddings", s->positions);
    nmlp_json_put_number(&w, "rms_norm_eps", s->eps);
    nmlp_json_put_bool(&w, "tie_word_embeddings", s->tied);
    nmlp_json_put_bool(&w, "attention_bias", nmlp_gguf_find_tensor(file, "blk.0.attn_output.bias") != NULL);
    nmlp_json_put_string(&w, "torch_dtype", "bfloat16");
    put_rope(s, &w);
    NMLP_RETURN_IF_FAILED(put_ids(file, &w, err));
    nmlp_json_end_object(&w);
    return nmlp_str_status(text, err);
}

nmlp_status nmlp_gguf_config_read(nmlp_config *config, bool *in_pairs, nmlp_gguf *file, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const char *arch;
    struct sizes s = {0};
    nmlp_str text;
    nmlp_json_doc doc = {0};
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_string(file, "general.architecture", &arch, err));
    if (!arch) return nmlp_fail(err, NMLP_E_MISSING, "%s: key \"general.architecture\" is missing", file->origin);
    const struct known *known = find_architecture(arch);
    if (!known)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: architecture \"%.40s\" is not supported; supported are llama, qwen2, qwen3", file->origin,
                         arch);
    const nmlp_gguf_tensor *embedding = nmlp_gguf_find_tensor(file, "token_embd.weight");
    if (!embedding) return nmlp_fail(err, NMLP_E_MISSING, "%s: tensor token_embd.weight is missing", file->origin);
    s.vocab = embedding->rows;
    s.tied = !nmlp_gguf_find_tensor(file, "output.weight");
    nmlp_str_init(&text);
    NMLP_TRY(read_sizes(&s, file, arch, err));
    NMLP_TRY(refuse_scaling(file, arch, err));
    NMLP_TRY(read_rope_table(&s, file, err));
    NMLP_TRY(write_text(file, known, &s, &text, err));
    NMLP_TRY(nmlp_json_parse(&doc, nmlp_str_text(&text), text.len, file->origin, err));
    NMLP_TRY(nmlp_config_parse(config, &doc, err));
    *in_pairs = known->in_pairs;
out:
    nmlp_json_free(&doc);
    nmlp_str_fini(&text);
    return st;
}
