#include "gguf/gguf_names.h"

#include <stdio.h>
#include <string.h>

struct pair {
    const char *gguf;
    const char *hf;
    nmlp_gguf_rows rows;
};

static const struct pair outside[] = {{"token_embd.weight", "model.embed_tokens.weight", NMLP_GGUF_ROWS_PLAIN},
                                      {"output_norm.weight", "model.norm.weight", NMLP_GGUF_ROWS_PLAIN},
                                      {"output.weight", "lm_head.weight", NMLP_GGUF_ROWS_PLAIN}};

static const struct pair inside[] = {{"attn_norm.weight", "input_layernorm.weight", NMLP_GGUF_ROWS_PLAIN},
                                     {"ffn_norm.weight", "post_attention_layernorm.weight", NMLP_GGUF_ROWS_PLAIN},
                                     {"attn_q.weight", "self_attn.q_proj.weight", NMLP_GGUF_ROWS_OF_Q},
                                     {"attn_k.weight", "self_attn.k_proj.weight", NMLP_GGUF_ROWS_OF_K},
                                     {"attn_v.weight", "self_attn.v_proj.weight", NMLP_GGUF_ROWS_PLAIN},
                                     {"attn_output.weight", "self_attn.o_proj.weight", NMLP_GGUF_ROWS_PLAIN},
                                     {"attn_q.bias", "self_attn.q_proj.bias", NMLP_GGUF_ROWS_OF_Q},
                                     {"attn_k.bias", "self_attn.k_proj.bias", NMLP_GGUF_ROWS_OF_K},
                                     {"attn_v.bias", "self_attn.v_proj.bias", NMLP_GGUF_ROWS_PLAIN},
                                     {"attn_output.bias", "self_attn.o_proj.bias", NMLP_GGUF_ROWS_PLAIN},
                                     {"attn_q_norm.weight", "self_attn.q_norm.weight", NMLP_GGUF_ROWS_PLAIN},
                                     {"attn_k_norm.weight", "self_attn.k_norm.weight", NMLP_GGUF_ROWS_PLAIN},
                                     {"ffn_gate.weight", "mlp.gate_proj.weight", NMLP_GGUF_ROWS_PLAIN},
                                     {"ffn_up.weight", "mlp.up_proj.weight", NMLP_GGUF_ROWS_PLAIN},
                                     {"ffn_down.weight", "mlp.down_proj.weight", NMLP_GGUF_ROWS_PLAIN}};

enum { N_OUTSIDE = sizeof outside / sizeof outside[0], N_INSIDE = sizeof inside / sizeof inside[0] };

static bool translate(char to[NMLP_GGUF_NAME_MAX], const char *from, bool to_hf, nmlp_gguf_rows *rows) {
    char rest[NMLP_GGUF_NAME_MAX];
    unsigned layer;
    for (int i = 0; i < N_OUTSIDE; i++) {
        if (strcmp(from, to_hf ? outside[i].gguf : outside[i].hf) != 0) continue;
        *rows = outside[i].rows;
        snprintf(to, NMLP_GGUF_NAME_MAX, "%s", to_hf ? outside[i].hf : outside[i].gguf);
        return true;
    }
    if (sscanf(from, to_hf ? "blk.%5u.%127s" : "model.layers.%5u.%127s", &layer, rest) != 2) return false;
    for (int i = 0; i < N_INSIDE; i++) {
        if (strcmp(rest, to_hf ? inside[i].gguf : inside[i].hf) != 0) continue;
        *rows = inside[i].rows;
        if (to_hf)
            snprintf(to, NMLP_GGUF_NAME_MAX, "model.layers.%u.%s", layer, inside[i].hf);
        else
            snprintf(to, NMLP_GGUF_NAME_MAX, "blk.%u.%s", layer, inside[i].gguf);
        return true;
    }
    return false;
}

bool nmlp_gguf_name_to_hf(char hf[NMLP_GGUF_NAME_MAX], const char *gguf, nmlp_gguf_rows *rows) {
    return translate(hf, gguf, true, rows);
}

bool nmlp_gguf_name_from_hf(char gguf[NMLP_GGUF_NAME_MAX], const char *hf, nmlp_gguf_rows *rows) {
    return translate(gguf, hf, false, rows);
}

int64_t nmlp_gguf_row_in_halves(int64_t row, int64_t head_dim) {
    int64_t head = row / head_dim * head_dim, at = row % head_dim;
    return head + at % 2 * (head_dim / 2) + at / 2;
}

int64_t nmlp_gguf_row_in_pairs(int64_t row, int64_t head_dim) {
    int64_t head = row / head_dim * head_dim, at = row % head_dim;
    return head + at % (head_dim / 2) * 2 + at / (head_dim / 2);
}
