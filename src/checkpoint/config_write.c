/* Writing config.json. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/json_write.h"
#include "checkpoint/config_internal.h"
#include "checkpoint/quant_tensors.h"
#include "checkpoint/transformers_files.h"

enum { PATH_MAX_BYTES = 4096 };

static void write_ids(const nmlp_config *c, nmlp_json_writer *w) {
    if (c->bos_id >= 0) nmlp_json_put_int(w, "bos_token_id", c->bos_id);
    if (c->n_stop_ids == 1) nmlp_json_put_int(w, "eos_token_id", c->stop_ids[0]);
    if (c->n_stop_ids <= 1) return;
    nmlp_json_begin_array(w, "eos_token_id");
    for (int i = 0; i < c->n_stop_ids; i++) nmlp_json_put_int(w, NULL, c->stop_ids[i]);
    nmlp_json_end_array(w);
}

static void put_cap(nmlp_json_writer *w, const char *key, double cap) {
    if (cap > 0)
        nmlp_json_put_number(w, key, cap);
    else
        nmlp_json_put_null(w, key); /* absent would mean the family's */
}

static void write_scalars(const nmlp_config *c, nmlp_json_writer *w) {
    const nmlp_family *f = c->features;
    if (f->multipliers) {
        nmlp_json_put_number(w, "embedding_multiplier", c->embedding_scale);
        nmlp_json_put_number(w, "residual_multiplier", c->residual_scale);
        nmlp_json_put_number(w, "attention_multiplier", c->score_scale);
        nmlp_json_put_number(w, "logits_scaling", c->logit_divisor);
    }
    if (f->query_scalar > 0)
        nmlp_json_put_number(w, "query_pre_attn_scalar", round(1e6 / (c->score_scale * c->score_scale)) / 1e6);
    if (f->score_softcap > 0) put_cap(w, "attn_logit_softcapping", c->score_softcap);
    if (f->has_logit_softcap) put_cap(w, "final_logit_softcapping", c->logit_softcap);
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
    nmlp_json_put_string(&w, NULL, extra ? NMLP_COMPRESSED_ARCHITECTURE : c->architecture);
    nmlp_json_end_array(&w);
    nmlp_json_put_string(&w, "model_type", extra ? NMLP_COMPRESSED_MODEL_TYPE : c->family);
    if (extra) {
        nmlp_json_put_string(&w, "base_architecture", c->architecture);
        nmlp_json_begin_object(&w, "auto_map");
        nmlp_json_put_string(&w, "AutoConfig", "configuration_neuronmlp.NeuronmlpConfig");
        nmlp_json_put_string(&w, "AutoModelForCausalLM", "modeling_neuronmlp.NeuronmlpForCausalLM");
        nmlp_json_end_object(&w);
    }
    nmlp_json_put_int(&w, "hidden_size", c->hidden);
    nmlp_json_put_int(&w, "intermediate_size", c->intermediate);
    nmlp_json_put_int(&w, "num_hidden_layers", c->n_layers);
    nmlp_json_put_int(&w, "num_attention_heads", c->n_heads);
    nmlp_json_put_int(&w, "num_key_value_heads", c->n_kv_heads);
    nmlp_json_put_int(&w, "head_dim", c->head_dim);
    nmlp_json_put_int(&w, "vocab_size", c->vocab);
    /* A dynamic rope goes beyond the maximum it is given. */
    nmlp_json_put_int(&w, "max_position_embeddings",
                      c->rope.kind == NMLP_ROPE_DYNAMIC ? (int64_t)c->rope.original_max_positions : c->max_positions);
    nmlp_json_put_number(&w, "rms_norm_eps", c->rms_eps);
    if (c->activation == NMLP_ACTIVATION_SILU)
        nmlp_json_put_string(&w, "hidden_act", "silu");
    else
        nmlp_json_put_string(&w, "hidden_activation", "gelu_pytorch_tanh");
    nmlp_json_put_bool(&w, "tie_word_embeddings", c->tied);
    nmlp_json_put_bool(&w, "attention_bias", c->o_bias);
    nmlp_json_put_string(&w, "torch_dtype", dtype_names[c->dtype]);
    write_scalars(c, &w);
    nmlp_config_write_experts(c, &w);
    nmlp_config_write_layers(c, &w);
    nmlp_config_write_rope(c, &w);
    write_ids(c, &w);
    if (extra) {
        nmlp_str_puts(out, ",\"neuronmlp\":");
        nmlp_str_puts(out, extra);
    }
    write_quantisation(specs, n_specs, out);
    nmlp_json_end_object(&w);
    nmlp_str_putc(out, '\n');
}

nmlp_status nmlp_transformers_files_write(const char *dir, nmlp_err *err) {
    for (const nmlp_transformers_file *file = nmlp_transformers_files; file->name; file++) {
        char path[PATH_MAX_BYTES];
        NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, file->name, err));
        NMLP_RETURN_IF_FAILED(nmlp_file_write_text(path, file->text, strlen(file->text), err));
    }
    return NMLP_OK;
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
    return st == NMLP_OK && extra ? nmlp_transformers_files_write(dir, err) : st;
}
