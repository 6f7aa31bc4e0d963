/* What tells one supported family of models from another: one row of features per architecture. Values that a
 * config.json may leave out are those its configuration class in transformers has. */
#ifndef NMLP_CHECKPOINT_FAMILY_H
#define NMLP_CHECKPOINT_FAMILY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "tensor/activation.h"

typedef enum nmlp_norm_place {
    NMLP_NORM_BEFORE, /* attention and MLP see normalised rows */
    NMLP_NORM_AFTER,  /* their outputs are normalised before they are added */
    NMLP_NORM_AROUND  /* both */
} nmlp_norm_place;

typedef enum nmlp_qk_norm {
    NMLP_QK_NORM_NONE,
    NMLP_QK_NORM_HEAD, /* every head of queries and keys by itself */
    NMLP_QK_NORM_ROW   /* all heads together */
} nmlp_qk_norm;

/* Which layers have the sliding window, where layer_types does not say. */
typedef enum nmlp_window_rule {
    NMLP_WINDOW_NEVER,
    NMLP_WINDOW_ALL,
    NMLP_WINDOW_PATTERN, /* all but every n-th */
    NMLP_WINDOW_IF_USED, /* all, where use_sliding_window */
    NMLP_WINDOW_LATE,    /* from max_window_layers on, where use_sliding_window */
    NMLP_WINDOW_NO_ROPE  /* layers without rope, where use_sliding_window */
} nmlp_window_rule;

/* How experts are spelled and mixed. */
typedef enum nmlp_expert_kind {
    NMLP_EXPERTS_NONE,
    NMLP_EXPERTS_MIXTRAL, /* block_sparse_moe.experts.E.w1, w3, w2 */
    NMLP_EXPERTS_QWEN     /* mlp.experts.E.gate_proj, up_proj, down_proj */
} nmlp_expert_kind;

typedef struct nmlp_family {
    const char *architecture; /* "LlamaForCausalLM" */
    const char *name;         /* its model_type */
    double rms_eps;
    double theta;
    double local_theta; /* of layers with a window; 0: the same rope for all */
    int64_t head_dim;   /* 0: hidden / heads */
    bool tied;
    bool qkv_bias;
    bool fused;        /* qkv_proj and gate_up_proj */
    bool partial_rope; /* partial_rotary_factor */
    nmlp_qk_norm qk_norm;
    nmlp_norm_place norm_place;
    bool norm_plus_one; /* norms multiply by 1 + weight */
    nmlp_activation activation;
    bool scale_by_hidden; /* embeddings are multiplied by sqrt(hidden) */
    bool multipliers;     /* embedding_, residual_, attention_multiplier and logits_scaling */
    double query_scalar;  /* query_pre_attn_scalar; 0: head_dim, and there is no such key */
    double score_softcap; /* attn_logit_softcapping; 0: there is no such key */
    double logit_softcap; /* final_logit_softcapping; 0: none */
    bool has_logit_softcap;
    nmlp_window_rule window_rule;
    int64_t window; /* 0: none */
    int64_t window_pattern;
    bool layer_types;      /* are read */
    int64_t nope_interval; /* every n-th layer has no rope, no_rope_layers; 0: there is no such key */
    bool query_growth;     /* llama_4_scaling_beta */
    nmlp_expert_kind experts;
    int64_t n_experts;
    int64_t experts_per_token;
    int64_t expert_intermediate; /* of moe_intermediate_size; 0: experts have intermediate_size */
    bool normalise_experts;      /* weights of the chosen ones sum to 1, whatever norm_topk_prob says */
} nmlp_family;

/* NULL: not supported. */
const nmlp_family *nmlp_family_find(const char *architecture);
/* Appends all architectures, with commas. */
void nmlp_family_names(nmlp_str *out);

#endif
