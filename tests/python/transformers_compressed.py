"""A compressed checkpoint in transformers (trust_remote_code): the logits and the greedy text of the program that made
it; what save_pretrained writes is read back.

  transformers_compressed.py PROGRAM DIR [TOKENS]
"""
import json, os, subprocess, sys, tempfile

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM


def logits_of(program, folder, ids):
    out = subprocess.run([program, "logits", folder, "--json", "--ids", ",".join(map(str, ids)), "--positions",
                          ",".join(map(str, range(len(ids))))], capture_output=True)
    if out.returncode:
        sys.exit(out.stderr.decode())
    return np.array(json.loads(out.stdout)["logits"], dtype=np.float64)


def compare(what, got, want):
    worst = np.abs(got - want).max() / np.abs(want).max()
    print(f"{what}: {worst:.1e}")
    if not worst <= 1e-5 or not (got.argmax(1) == want.argmax(1)).all():
        sys.exit(f"{what} differ")


def main():
    program, folder = sys.argv[1:3]
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
    with open(os.path.join(folder, "config.json")) as f:
        vocab = json.load(f)["vocab_size"]
    ids = torch.randint(0, vocab, (1, 48), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = model(ids).logits[0].double().numpy()
        compare("logits", logits_of(program, folder, ids[0].tolist()), theirs)
        text = model.generate(ids[:, :8], max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)[0]
    ours = logits_of(program, folder, text.tolist()).argmax(1)[7:-1]
    same = int((ours == text[8:].numpy()).sum())
    print(f"greedy: {same} of {n} tokens equal")
    if same != n:
        sys.exit("greedy texts differ")
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        compare("saved again", logits_of(program, again, ids[0].tolist()), theirs)
    print(f"transformers {transformers.__version__}")


main()
