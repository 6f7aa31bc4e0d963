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
#include "checkpoint/tensor_spec.h"
#include "tensor/dtype.h"

enum { NMLP_STOP_IDS_MAX = 16, NMLP_ARCHITECTURE_MAX = 64 };

typedef enum nmlp_rope_kind { NMLP_ROPE_DEFAULT, NMLP_ROPE_LLAMA3 } nmlp_rope_kind;

typedef struct nmlp_rope_config {
    nmlp_rope_kind kind;
    double theta;
    /* llama3 only */
    double factor;
    double low_freq_factor;
    double high_freq_factor;
    double original_max_positions;
} nmlp_rope_config;

typedef struct nmlp_config {
    char architecture[NMLP_ARCHITECTURE_MAX]; /* "LlamaForCausalLM" */
    const char *family;                       /* "llama", "mistral", "qwen2", "qwen3" */
    int64_t hidden;
    int64_t intermediate;
    int64_t n_layers;
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t head_dim;
    int64_t vocab;
    int64_t max_positions;
    double rms_eps;
    bool tied; /* lm_head is the embedding */
    bool qkv_bias;
    bool o_bias;
    bool qk_norm;
    nmlp_rope_config rope;
    nmlp_dtype dtype; /* what the file says weights are in */
    int64_t bos_id;   /* -1: none */
    int64_t stop_ids[NMLP_STOP_IDS_MAX];
    int n_stop_ids;
    bool quantised;  /* has a "quantization_config": some weights are Q8 or Q4 */
    bool compressed; /* has a "neuronmlp" object */
    double ratio;    /* its fraction of MLP parameters removed */
    int64_t tile;    /* its rank granularity */
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

#endif
