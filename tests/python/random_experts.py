"""A small random model with experts, made by transformers, with a tokenizer, so that it can be compressed.

  random_experts.py qwen3_moe|mixtral TOKENIZER_JSON DIR
"""
import json, shutil, sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

EXPERTS = {
    "qwen3_moe": dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True,
                      mlp_only_layers=[0]),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
}


def main():
    family, tokenizer, folder = sys.argv[1:4]
    with open(tokenizer) as f:
        known = json.load(f)
    vocab = max(max(known["model"]["vocab"].values()), max(t["id"] for t in known["added_tokens"])) + 1
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, vocab_size=vocab, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                  num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                  max_position_embeddings=512, initializer_range=0.1, bos_token_id=1, eos_token_id=2,
                                  **EXPERTS[family])
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    shutil.copy(tokenizer, folder)


main()
