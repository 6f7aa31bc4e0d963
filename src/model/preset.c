#include "model/preset.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/json_write.h"

struct preset {
    const char *name;
    const char *architecture;
    int64_t hidden, intermediate, n_layers, n_heads, n_kv_heads, head_dim, vocab, max_positions;
    double rope_theta, rope_factor, eps;
    bool tied;
    const char *more; /* further keys, or NULL */
};

/* Public config.json files of the models; of long-context rope scalings only Llama's, since no shape depends on them.
 */
static const struct preset presets[] = {
    {"llama-3.2-1b", "LlamaForCausalLM", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5, 32, 1e-5, true, NULL},
    {"llama-3.2-3b", "LlamaForCausalLM", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5, 32, 1e-5, true, NULL},
    {"llama-3.1-8b", "LlamaForCausalLM", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 5e5, 8, 1e-5, false, NULL},
    {"llama-3.1-70b", "LlamaForCausalLM", 8192, 28672, 80, 64, 8, 128, 128256, 131072, 5e5, 8, 1e-5, false, NULL},
    {"llama-2-7b", "LlamaForCausalLM", 4096, 11008, 32, 32, 32, 128, 32000, 4096, 1e4, 0, 1e-5, false, NULL},
    {"qwen3-1.7b", "Qwen3ForCausalLM", 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e6, 0, 1e-6, true, NULL},
    {"qwen3-4b", "Qwen3ForCausalLM", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e6, 0, 1e-6, true, NULL},
    {"qwen3-8b", "Qwen3ForCausalLM", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e6, 0, 1e-6, false, NULL},
    {"mistral-7b-v0.3", "MistralForCausalLM", 4096, 14336, 32, 32, 8, 128, 32768, 32768, 1e6, 0, 1e-5, false,
     "\"sliding_window\":null"},
    {"qwen2.5-1.5b", "Qwen2ForCausalLM", 1536, 8960, 28, 12, 2, 128, 151936, 32768, 1e6, 0, 1e-6, true, NULL},
    {"phi-4", "Phi3ForCausalLM", 5120, 17920, 40, 40, 10, 128, 100352, 16384, 2.5e5, 0, 1e-5, false,
     "\"sliding_window\":null"},
    {"granite-3.3-2b", "GraniteForCausalLM", 2048, 8192, 40, 32, 8, 64, 49159, 131072, 1e7, 0, 1e-5, true,
     "\"embedding_multiplier\":12,\"residual_multiplier\":0.22,\"attention_multiplier\":0.015625,"
     "\"logits_scaling\":8"},
    {"smollm3-3b", "SmolLM3ForCausalLM", 2048, 11008, 36, 16, 4, 128, 128256, 65536, 5e6, 0, 1e-6, true, NULL},
    {"olmo-2-1b", "Olmo2ForCausalLM", 2048, 8192, 16, 16, 16, 128, 100352, 4096, 5e5, 0, 1e-6, false, NULL},
    {"olmo-3-7b", "Olmo3ForCausalLM", 4096, 11008, 32, 32, 32, 128, 100278, 65536, 5e5, 0, 1e-6, false,
     "\"sliding_window\":4096"},
    {"gemma-2-2b", "Gemma2ForCausalLM", 2304, 9216, 26, 8, 4, 256, 256000, 8192, 1e4, 0, 1e-6, true, NULL},
    {"gemma-3-1b", "Gemma3ForCausalLM", 1152, 6912, 26, 4, 1, 256, 262144, 32768, 1e6, 0, 1e-6, true,
     "\"sliding_window\":512,\"rope_local_base_freq\":10000,\"sliding_window_pattern\":6"},
    {"mixtral-8x7b", "MixtralForCausalLM", 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e6, 0, 1e-5, false,
     "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"sliding_window\":null"},
    {"qwen3-30b-a3b", "Qwen3MoeForCausalLM", 2048, 6144, 48, 32, 4, 128, 151936, 40960, 1e6, 0, 1e-6, false,
     "\"num_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":768,\"norm_topk_prob\":true"},
    {"olmoe-1b-7b", "OlmoeForCausalLM", 2048, 1024, 16, 16, 16, 128, 50304, 4096, 1e4, 0, 1e-5, false,
     "\"num_experts\":64,\"num_experts_per_tok\":8,\"norm_topk_prob\":false"},
};

enum { N_PRESETS = sizeof presets / sizeof presets[0] };

void nmlp_preset_names(nmlp_str *out) {
    for (size_t i = 0; i < N_PRESETS; i++) nmlp_str_printf(out, "%s%s", i ? ", " : "", presets[i].name);
}

/* As a config.json would say it. */
static void write_keys(nmlp_str *out, const struct preset *p) {
    nmlp_json_writer w;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_begin_array(&w, "architectures");
    nmlp_json_put_string(&w, NULL, p->architecture);
    nmlp_json_end_array(&w);
    nmlp_json_put_int(&w, "hidden_size", p->hidden);
    nmlp_json_put_int(&w, "intermediate_size", p->intermediate);
    nmlp_json_put_int(&w, "num_hidden_layers", p->n_layers);
    nmlp_json_put_int(&w, "num_attention_heads", p->n_heads);
    nmlp_json_put_int(&w, "num_key_value_heads", p->n_kv_heads);
    nmlp_json_put_int(&w, "head_dim", p->head_dim);
    nmlp_json_put_int(&w, "vocab_size", p->vocab);
    nmlp_json_put_int(&w, "max_position_embeddings", p->max_positions);
    nmlp_json_put_number(&w, "rms_norm_eps", p->eps);
    nmlp_json_put_number(&w, "rope_theta", p->rope_theta);
    nmlp_json_put_bool(&w, "tie_word_embeddings", p->tied);
    if (p->rope_factor > 0) {
        nmlp_json_begin_object(&w, "rope_scaling");
        nmlp_json_put_string(&w, "rope_type", "llama3");
        nmlp_json_put_number(&w, "factor", p->rope_factor);
        nmlp_json_put_int(&w, "low_freq_factor", 1);
        nmlp_json_put_int(&w, "high_freq_factor", 4);
        nmlp_json_put_int(&w, "original_max_position_embeddings", 8192);
        nmlp_json_end_object(&w);
    }
    if (p->more) nmlp_str_printf(out, ",%s", p->more);
    nmlp_json_end_object(&w);
}

static nmlp_status fill_config(nmlp_config *c, const struct preset *p, nmlp_err *err) {
    nmlp_json_doc doc;
    nmlp_str text;
    nmlp_str_init(&text);
    write_keys(&text, p);
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_json_parse(&doc, nmlp_str_text(&text), text.len, p->name, err);
    if (st == NMLP_OK) {
        st = nmlp_config_parse(c, &doc, err);
        nmlp_json_free(&doc);
    }
    nmlp_str_fini(&text);
    return st;
}

nmlp_status nmlp_preset_find(nmlp_config *config, const char *name, nmlp_err *err) {
    for (size_t i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            return fill_config(config, &presets[i], err);
        }
    }
    nmlp_str names;
    nmlp_str_init(&names);
    nmlp_preset_names(&names);
    nmlp_fail(err, NMLP_E_ARG, "no preset \"%s\"; there are %s", name, nmlp_str_text(&names));
    nmlp_str_fini(&names);
    return NMLP_E_ARG;
}

int64_t nmlp_rank_for_ratio(int64_t rows, int64_t cols, double ratio, int64_t tile) {
    double break_even = (double)rows * (double)cols / (double)(rows + cols);
    /* A hair of slack so that ratios like 0.2 do not lose a tile to their binary rounding. */
    int64_t tiles = (int64_t)floor(break_even * (1 - ratio) / (double)tile + 1e-9);
    if (tiles < 1) tiles = 1;
    return (double)(tiles * tile) < break_even ? tiles * tile : 0;
}
