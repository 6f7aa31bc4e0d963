#!/bin/sh
# transformers loads a compressed checkpoint by the files beside it: logits, greedy text, and what save_pretrained
# writes. Needs torch and transformers from PyPI, in the python3 that PYTHON names.
. "$2/tests/lib/cli.sh"
python=""
for candidate in ${PYTHON:-} python3; do
    if "$candidate" -c 'import torch, transformers' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: no python3 with torch and transformers (PyPI); compressed checkpoints were not loaded there" >&2
    exit 77
fi
models=$root/../shared/models
model=$models/tiny
if [ ! -d "$model" ]; then
    echo "SKIPPED: $model is not there" >&2
    exit 77
fi
cd "$work"
export PYTHONDONTWRITEBYTECODE=1 HF_HOME="$work/hf"
for name in tiny small; do
    for modules in mlp mlp,attn; do
        "$command" compress "$models/$name" -o "$name.$modules" --ratio 0.3 --modules "$modules" --alloc uniform \
            --recover none --calib-tokens 2048 --heldout 512 --calib "$root/../shared/data/text/calib.mix.txt" \
            >/dev/null 2>&1
        "$python" "$root/tests/python/transformers_compressed.py" "$command" "$name.$modules"
    done
done

# Experts: random models of two families, each expert with ranks of its own.
for family in qwen3_moe mixtral; do
    "$python" "$root/tests/python/random_experts.py" "$family" "$model/tokenizer.json" "$family"
    "$command" compress "$family" -o "$family.small" --ratio 0.3 --tile 4 --rounds 0 --calib-tokens 4096 --heldout 1024 \
        --ctx 128 --calib "$root/../shared/data/text/calib.mix.txt" >/dev/null 2>&1
    "$python" "$root/tests/python/transformers_compressed.py" "$command" "$family.small" 50
done
