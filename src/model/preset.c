#include "model/preset.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct preset {
    const char *name;
    const char *architecture;
    int64_t hidden, intermediate, n_layers, n_heads, n_kv_heads, head_dim, vocab, max_positions;
    double rope_theta, rope_factor, eps;
    bool tied;
};

/* Public config.json files of the models. */
static const struct preset presets[] = {
    {"llama-3.2-1b", "LlamaForCausalLM", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5, 32, 1e-5, true},
    {"llama-3.2-3b", "LlamaForCausalLM", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5, 32, 1e-5, true},
    {"llama-3.1-8b", "LlamaForCausalLM", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 5e5, 8, 1e-5, false},
    {"qwen3-1.7b", "Qwen3ForCausalLM", 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e6, 0, 1e-6, true},
    {"qwen3-4b", "Qwen3ForCausalLM", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e6, 0, 1e-6, true},
    {"qwen3-8b", "Qwen3ForCausalLM", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e6, 0, 1e-6, false},
};

enum { N_PRESETS = sizeof presets / sizeof presets[0] };

void nmlp_preset_names(nmlp_str *out) {
    for (size_t i = 0; i < N_PRESETS; i++) nmlp_str_printf(out, "%s%s", i ? ", " : "", presets[i].name);
}

static void fill_config(nmlp_config *c, const struct preset *p) {
    bool qwen = strcmp(p->architecture, "Qwen3ForCausalLM") == 0;
    *c = (nmlp_config){.family = qwen ? "qwen3" : "llama",
                       .hidden = p->hidden,
                       .intermediate = p->intermediate,
                       .n_layers = p->n_layers,
                       .n_heads = p->n_heads,
                       .n_kv_heads = p->n_kv_heads,
                       .head_dim = p->head_dim,
                       .vocab = p->vocab,
                       .max_positions = p->max_positions,
                       .rms_eps = p->eps,
                       .tied = p->tied,
                       .qk_norm = qwen,
                       .rope = {.kind = NMLP_ROPE_DEFAULT, .theta = p->rope_theta},
                       .dtype = NMLP_DTYPE_BF16,
                       .bos_id = -1};
    snprintf(c->architecture, sizeof c->architecture, "%s", p->architecture);
    if (p->rope_factor > 0)
        c->rope = (nmlp_rope_config){.kind = NMLP_ROPE_LLAMA3,
                                     .theta = p->rope_theta,
                                     .factor = p->rope_factor,
                                     .low_freq_factor = 1,
                                     .high_freq_factor = 4,
                                     .original_max_positions = 8192};
}

nmlp_status nmlp_preset_find(nmlp_config *config, const char *name, nmlp_err *err) {
    for (size_t i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            fill_config(config, &presets[i]);
            return NMLP_OK;
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
