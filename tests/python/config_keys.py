"""Every key of every family's config.json set to another value: the program refuses it or computes what transformers
does. Keys of shapes are left out, since the weights would not fit.

  config_keys.py BIN DIR    DIR holds models as families.py makes them
"""
import json, os, subprocess, sys, tempfile

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

IDS = [(7 * i * i + 3 * i + 5) % 96 for i in range(40)]
LIMIT = 2e-5
SHAPES = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
          "intermediate_size", "moe_intermediate_size", "num_experts", "num_local_experts"}
# What no forward pass in float32 looks at, and names.
IDLE = {"architectures", "model_type", "transformers_version", "dtype", "initializer_range", "use_cache",
        "pad_token_id", "bos_token_id", "eos_token_id", "output_attentions", "output_hidden_states", "return_dict",
        "problem_type", "id2label", "label2id", "chunk_size_feed_forward", "is_encoder_decoder", "is_decoder",
        "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "attention_dropout", "embd_pdrop",
        "resid_pdrop"}
ACTIVATIONS = {"silu": ["gelu", "relu"], "gelu_pytorch_tanh": ["silu", "gelu"]}


def others(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2 if value else 3, max(1, value // 2)]
    if isinstance(value, float):
        return [value * 2 if value else 0.5]
    if value is None:
        return [8, True, 0.5]
    if isinstance(value, str):
        return ACTIVATIONS.get(value, [])
    if isinstance(value, list) and value:
        return [value[::-1], [value[-1]] * len(value)]
    if isinstance(value, dict):
        return [{**value, k: v * 2} for k, v in value.items() if type(v) in (int, float)]
    return []


def theirs(folder):
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            return model(torch.tensor([IDS])).logits[0, -1].numpy()
    except Exception:  # of any kind: transformers refuses the value too
        return None


def verdict(program, weights, config):
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(weights, os.path.join(folder, "model.safetensors"))
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)
        out = subprocess.run([program, "logits", folder, "--json", "--ids", ",".join(map(str, IDS))],
                             capture_output=True)
        if out.returncode == 1:
            return "refused"
        if out.returncode:
            return "crashed"
        ours, want = np.array(json.loads(out.stdout)["logits"][-1]), theirs(folder)
    if want is None:
        return "refused by transformers"
    return "equal" if np.linalg.norm(want - ours) < LIMIT * np.linalg.norm(want) else "wrong"


def main():
    program, root = sys.argv[1], os.path.abspath(sys.argv[2])
    transformers.logging.set_verbosity_error()
    count, bad = {}, 0
    for name in sorted(os.listdir(root)):
        folder = os.path.join(root, name)
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
        known = {**AutoConfig.from_pretrained(folder).to_dict(), **config}
        for key in sorted(k for k in known if k not in SHAPES | IDLE and not k.startswith("_")):
            for value in others(known[key]):
                result = verdict(program, os.path.join(folder, "model.safetensors"), {**config, key: value})
                count[result] = count.get(result, 0) + 1
                if result in ("wrong", "crashed"):
                    bad += 1
                    print(f"{name}: {key} {known[key]} -> {value}: {result}")
    print(f"transformers {transformers.__version__}: {count}")
    return 1 if bad or not count.get("equal") or not count.get("refused") else 0


if __name__ == "__main__":
    sys.exit(main())
