"""Random tiny models of every supported family, with the logits that transformers computes in float32.

  families.py make DIR    writes DIR/NAME/{config.json,model.safetensors,expected.bin} for every case
  families.py adapter DIR   writes DIR, a LoRA adapter of DIR/../families/llama with the logits that PEFT computes
  families.py check BIN   makes them in a temporary folder, runs `BIN logits` on each and compares

expected.bin: one block per length of the case, little-endian: int32 n, vocab and rows; n token ids and the n largest
logits' indices as int32; positions of the rows as int32; rows x vocab logits as float32.
"""
import json, os, shutil, struct, subprocess, sys, tempfile

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

BASE = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=256, initializer_range=0.25,
            bos_token_id=1, eos_token_id=2, pad_token_id=0)


def rope(**kw):
    return dict(rope_parameters=dict(rope_theta=10000.0, **kw))


LONG = dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 2.0],
            long_factor=[1.5, 2.0, 3.0, 5.0, 6.0, 8.0],
            original_max_position_embeddings=64)
CASES = {
    "llama": ("llama", {}, [40]),
    "llama-linear": ("llama", rope(rope_type="linear", factor=3.0), [120]),
    "llama-dynamic": ("llama", dict(max_position_embeddings=64, **rope(rope_type="dynamic", factor=4.0)), [40, 150]),
    "llama-yarn": ("llama", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32), [150]),
    "llama-llama3": ("llama", rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                   original_max_position_embeddings=64), [150]),
    "mistral-window": ("mistral", dict(sliding_window=19), [20, 150]),
    "ministral": ("ministral", dict(sliding_window=24, layer_types=["full_attention", "sliding_attention"] * 2), [150]),
    "ministral3": ("ministral3", dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=1e6, factor=8.0, original_max_position_embeddings=32, beta_fast=32.0,
        beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)), [150]),
    "qwen2": ("qwen2", {}, [40]),
    "qwen2-window": ("qwen2", dict(use_sliding_window=True, sliding_window=16, max_window_layers=2), [150]),
    "qwen3": ("qwen3", {}, [40]),
    "qwen3-yarn": ("qwen3", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64), [150]),
    "phi3": ("phi3", dict(head_dim=None, sliding_window=33), [150]),
    "phi4-longrope": ("phi3", dict(head_dim=None, hidden_size=64, partial_rotary_factor=0.75, num_hidden_layers=2,
                                   original_max_position_embeddings=64,
                                   rope_parameters=dict(rope_theta=10000.0, partial_rotary_factor=0.75, **LONG)),
                      [60, 150]),
    "granite": ("granite", dict(embedding_multiplier=6.0, residual_multiplier=0.3, attention_multiplier=0.2,
                                logits_scaling=4.0), [40]),
    "smollm3": ("smollm3", {}, [150]),
    "olmo2": ("olmo2", {}, [40]),
    "olmo3": ("olmo3", dict(sliding_window=20), [150]),
    "olmo3-yarn": ("olmo3", dict(sliding_window=20, rope_parameters=dict(
        full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=4.0, original_max_position_embeddings=64,
                            attention_factor=1.2),
        sliding_attention=dict(rope_type="default", rope_theta=500000.0))), [150]),
    "gemma2": ("gemma2", dict(sliding_window=21, query_pre_attn_scalar=12, attn_logit_softcapping=5.0,
                              final_logit_softcapping=6.0), [20, 150]),
    "mixtral": ("mixtral", dict(num_local_experts=4, num_hidden_layers=2), [40]),
    "qwen3-moe": ("qwen3_moe", dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True,
                                    mlp_only_layers=[1], num_hidden_layers=3), [40]),
    "olmoe": ("olmoe", dict(num_experts=6, num_experts_per_tok=2, intermediate_size=24, num_hidden_layers=2,
                            head_dim=None), [40]),
    "gemma3": ("gemma3_text", dict(sliding_window=18, query_pre_attn_scalar=8, num_hidden_layers=6), [150]),
}


def make(name, folder):
    kind, extra, lengths = CASES[name]
    keys = {k: v for k, v in {**BASE, **extra}.items() if v is not None}
    torch.manual_seed(sum(map(ord, name)))
    config = AutoConfig.for_model(kind, **json.loads(json.dumps(keys)))
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if p.ndim == 1:
                p.add_(torch.randn_like(p) * 0.2)
            elif "lm_head" in parameter_name or "embed" in parameter_name:
                p.normal_(0, 0.5)
        for p in model.parameters():  # so that bf16 kernels see the same weights
            p.copy_(p.bfloat16().float())
    blocks = []
    for n in lengths:
        ids = torch.randint(0, BASE["vocab_size"], (1, n), generator=torch.Generator().manual_seed(n))
        with torch.no_grad():
            logits = model(ids).logits[0].float().numpy()
        blocks.append((ids[0].numpy().astype("<i4"), logits.astype("<f4")))
    model.bfloat16().save_pretrained(folder)
    write_expected(folder, blocks)
    return blocks


def write_expected(folder, blocks):
    with open(os.path.join(folder, "expected.bin"), "wb") as f:
        for ids, logits in blocks:
            n, vocab = logits.shape
            rows = np.unique(np.append(np.arange(0, n, 16), n - 1)).astype("<i4")
            f.write(struct.pack("<iii", n, vocab, len(rows)) + ids.tobytes() +
                    logits.argmax(1).astype("<i4").tobytes() + rows.tobytes() + logits[rows].tobytes())


def make_adapter(folder):
    import peft
    base = os.path.join(os.path.dirname(os.path.abspath(folder)), "families", "llama")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(5)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=6, use_rslora=True, target_modules=[
        "q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"])).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.1)
        ids = torch.randint(0, BASE["vocab_size"], (1, 40), generator=torch.Generator().manual_seed(3))
        logits = model(ids).logits[0].float().numpy()
    model.save_pretrained(folder)
    write_expected(folder, [(ids[0].numpy().astype("<i4"), logits.astype("<f4"))])
    for extra in os.listdir(folder):
        if extra not in ("adapter_config.json", "adapter_model.safetensors", "expected.bin"):
            os.remove(os.path.join(folder, extra))
    config = os.path.join(folder, "adapter_config.json")
    with open(config) as f:
        keys = json.load(f)
    keys["base_model_name_or_path"] = "llama"
    with open(config, "w") as f:
        json.dump(keys, f, indent=1)


def check(program, names):
    worst_all = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            for ids, logits in make(name, folder):
                out = subprocess.run([program, "logits", folder, "--json", "--ids", ",".join(map(str, ids)),
                                      "--positions", ",".join(map(str, range(len(ids))))], capture_output=True)
                if out.returncode:
                    print(f"{name}: {out.stderr.decode().strip()}")
                    worst_all = float("inf")
                    continue
                got = np.array(json.loads(out.stdout)["logits"], dtype=np.float64)
                worst = np.abs(got - logits).max() / np.abs(logits).max()
                same = (got.argmax(1) == logits.argmax(1)).all()
                worst_all = max(worst_all, worst if same else float("inf"))
                print(f"{name} n={len(ids)}: {worst:.1e} {'argmax equal' if same else 'ARGMAX DIFFERS'}", flush=True)
    print(f"transformers {transformers.__version__}: worst {worst_all:.1e}")
    return 0 if worst_all <= 2e-5 else 1


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    names = sys.argv[3:] or list(CASES)
    if sys.argv[1] == "check":
        sys.exit(check(sys.argv[2], names))
    if sys.argv[1] == "adapter":
        return make_adapter(sys.argv[2])
    for name in names:
        folder = os.path.join(sys.argv[2], name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        make(name, folder)
        for extra in os.listdir(folder):
            if extra not in ("config.json", "model.safetensors", "expected.bin"):
                os.remove(os.path.join(folder, extra))
        print(name, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)), flush=True)


main()
