/* config.json of a Hugging Face checkpoint, in both spellings: `rope_theta` + `rope_scaling` (most published ones) and
 * `rope_parameters` (newest), with the "neuronmlp" object of a compressed checkpoint. */
#ifndef NMLP_CHECKPOINT_CONFIG_H
#define NMLP_CHECKPOINT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "base/str.h"
#include "checkpoint/family.h"
#include "checkpoint/tensor_spec.h"
#include "tensor/dtype.h"

enum { NMLP_STOP_IDS_MAX = 16, NMLP_ARCHITECTURE_MAX = 64, NMLP_LAYERS_MAX = 4096, NMLP_ROPE_FACTORS_MAX = 128 };

typedef enum nmlp_rope_kind {
    NMLP_ROPE_DEFAULT,
    NMLP_ROPE_LINEAR,
    NMLP_ROPE_DYNAMIC,
    NMLP_ROPE_YARN,
    NMLP_ROPE_LLAMA3,
    NMLP_ROPE_LONGROPE
} nmlp_rope_kind;

typedef struct nmlp_rope_config {
    nmlp_rope_kind kind;
    double theta;
    double factor;                 /* all kinds but default */
    double original_max_positions; /* dynamic, yarn, llama3, longrope */
    double low_freq_factor;        /* llama3 */
    double high_freq_factor;
    double beta_fast; /* yarn */
    double beta_slow;
    bool truncate;
    double attention_factor; /* yarn, longrope: cosines and sines are multiplied with it */
    /* longrope: what frequencies are divided by, up to the original length and beyond it */
    int64_t n_factors;
    float short_factor[NMLP_ROPE_FACTORS_MAX];
    float long_factor[NMLP_ROPE_FACTORS_MAX];
    double query_growth; /* queries are multiplied by 1 + this * log(1 + floor(position / original)); 0: not */
} nmlp_rope_config;

typedef struct nmlp_layer_set {
    uint64_t bits[NMLP_LAYERS_MAX / 64];
} nmlp_layer_set;

static inline bool nmlp_layer_set_has(const nmlp_layer_set *set, int64_t layer) {
    return set->bits[layer / 64] >> (layer % 64) & 1;
}
static inline void nmlp_layer_set_add(nmlp_layer_set *set, int64_t layer) {
    set->bits[layer / 64] |= UINT64_C(1) << (layer % 64);
}

enum { NMLP_SLICES_MAX = 64 };

typedef struct nmlp_config {
    char architecture[NMLP_ARCHITECTURE_MAX]; /* "LlamaForCausalLM" */
    const char *family;                       /* its model_type: "llama", "qwen3", ... */
    const nmlp_family *features;              /* of the family */
    int64_t hidden;
    int64_t intermediate;
    int64_t n_layers;
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t head_dim;
    int64_t rope_dim; /* dimensions of a head that are rotated, the first ones */
    int64_t vocab;
    int64_t max_positions;
    double rms_eps;
    bool tied; /* lm_head is the embedding */
    bool qkv_bias;
    bool o_bias;
    nmlp_rope_config rope;
    nmlp_rope_config local_rope;  /* of layers with a window, where the family has two */
    int64_t window;               /* positions that a layer of window_layers sees; 0: none */
    nmlp_layer_set window_layers; /* "sliding_attention" */
    nmlp_layer_set nope_layers;   /* without rope */
    int64_t n_experts;            /* 0: none */
    int64_t experts_per_token;
    int64_t expert_intermediate;
    bool normalise_experts;      /* weights of the chosen ones are divided by their sum */
    nmlp_layer_set dense_layers; /* without experts, where others have them */
    nmlp_activation activation;
    double embedding_scale; /* of rows of the embedding */
    double residual_scale;  /* of what attention and MLP add */
    double score_scale;     /* of products of queries and keys */
    double score_softcap;   /* 0: none */
    double logit_divisor;
    double logit_softcap; /* 0: none */
    nmlp_dtype dtype;     /* what the file says weights are in */
    int64_t bos_id;       /* -1: none */
    int64_t stop_ids[NMLP_STOP_IDS_MAX];
    int n_stop_ids;
    bool quantised;          /* has a "quantization_config": some weights are Q8 or Q4 */
    bool compressed;         /* has a "neuronmlp" object */
    bool attention_factored; /* some of q, k, v and o are factors, as the model found them */
    double ratio;            /* its fraction of MLP parameters removed */
    int64_t tile;            /* its rank granularity */
    int64_t slices;          /* of the intermediate width, each with factors of its own; 0: factors of whole matrices */
} nmlp_config;

/* Reads DIR/config.json and, where present, DIR/generation_config.json (stop tokens). */
nmlp_status nmlp_config_load(nmlp_config *config, const char *dir, nmlp_err *err);
/* From a parsed config.json. */
nmlp_status nmlp_config_parse(nmlp_config *config, const nmlp_json_doc *doc, nmlp_err *err);

/* Appends config.json text in the older spelling. `extra` is the text of a "neuronmlp" object, or NULL. The quantised
 * ones of `specs`, the tensors that are written beside it, get a "quantization_config". */
void nmlp_config_write(const nmlp_config *config, const char *extra, const nmlp_tensor_spec *specs, size_t n_specs,
                       nmlp_str *out);
/* The same as DIR/config.json. */
nmlp_status nmlp_config_save(const nmlp_config *config, const char *extra, const nmlp_tensor_spec *specs,
                             size_t n_specs, const char *dir, nmlp_err *err);

/* Positions that a layer sees at most, itself the last; 0: all. A window that no text outgrows is none. */
int64_t nmlp_config_window(const nmlp_config *config, int64_t layer);
/* Of a layer; NULL: it has none. */
const nmlp_rope_config *nmlp_config_rope(const nmlp_config *config, int64_t layer);
/* Whether a layer has experts instead of one MLP. */
bool nmlp_config_has_experts(const nmlp_config *config, int64_t layer);
/* MLPs of a layer: its experts, or 1. */
int64_t nmlp_config_mlp_count(const nmlp_config *config, int64_t layer);
/* Neurons of each of them. */
int64_t nmlp_config_mlp_inner(const nmlp_config *config, int64_t layer);
/* What the model has that the plain decoder of Llama and Qwen3 has not, in words, or NULL: programs that know only that
 * one refuse by it. */
const char *nmlp_config_beyond_plain(const nmlp_config *config);

#endif
