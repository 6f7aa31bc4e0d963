#!/bin/sh
# From compressed checkpoints to packages: models at some ratios, on every target, with several ranks and joined cores. Every kernel passes the
# checker (when it is written), the simulator against float64 and, in the stand-in for NKI on its packed weights, float64; packed weights equal an independent packing; with
# PyTorch the whole model on the CPU gives the engine's logits. Prints a line per package.
# NMLP_ACCEPTANCE_MODELS, _RATIOS, _PLACES ("target:tp:lnc ...") choose more: 0.1 to 0.5, trn1 to trn3, tp 1, 2, 4 and lnc 1, 2 take an hour.
# NMLP_ACCEPTANCE_FUSE is what the kernels do besides (auto), NMLP_ACCEPTANCE_CALIB the text, NMLP_ACCEPTANCE_COMPRESS the options of compress; empty means its defaults.
set -eu
nmlp=$1
root=$2
models=${NMLP_ACCEPTANCE_MODELS:-$root/models/tiny}
ratios=${NMLP_ACCEPTANCE_RATIOS:-0.2 0.5}
places=${NMLP_ACCEPTANCE_PLACES:-trn1:1:1 trn2:2:1 trn2:4:2 trn3:1:1}
calib=${NMLP_ACCEPTANCE_CALIB:-$root/models/tiny/calib.txt}
options=${NMLP_ACCEPTANCE_COMPRESS---calib-tokens 2048 --heldout 256 --rounds 0}
fuse=${NMLP_ACCEPTANCE_FUSE:-auto}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
number() { sed -n "s/.*\"$1\":\([-+0-9.e]*\).*/\1/p" "$2"; }
export PYTHONDONTWRITEBYTECODE=1
numpy="" torch=""
for candidate in ${PYTHON:-} python3 /usr/bin/python3; do
    [ -n "$numpy" ] || ! "$candidate" -c 'import numpy' 2>/dev/null || numpy=$candidate
    [ -n "$torch" ] || ! "$candidate" -c 'import numpy, torch, transformers, safetensors' 2>/dev/null || torch=$candidate
done
if [ -z "$numpy" ]; then
    echo "SKIPPED: no python3 with NumPy (Debian: python3-numpy); packages were NOT checked" >&2
    exit 77
fi
[ -n "$torch" ] || echo "SKIPPED in part: no Python with torch and transformers; logits were NOT compared" >&2

printf '%-8s %5s %-10s %6s %8s %13s %8s %9s\n' model ratio target:tp:lnc forms kernels bytes replicas seconds
for model in $models; do
    if [ ! -e "$model/config.json" ]; then
        echo "SKIPPED: $model is not there" >&2
        continue
    fi
    name=$(basename "$model")
    for ratio in $ratios; do
        # shellcheck disable=SC2086 # several options
        "$nmlp" compress "$model" -o "$dir/c" --ratio "$ratio" --calib "$calib" $options >/dev/null 2>&1 ||
            fail "compress $model at $ratio"
        for place in $places; do
            target=${place%%:*} rest=${place#*:}
            "$nmlp" emit --target "$target" --model "$dir/c" --tp "${rest%:*}" --lnc "${rest#*:}" --fuse "$fuse" --buckets 1,40 --cache "$dir/plans" -o "$dir/p" --json >"$dir/json" ||
                fail "emit of $name at $ratio for $place"
            "$numpy" "$root/tests/emit/package_check.py" "$dir/p" "$dir/c" "$nmlp" >/dev/null || fail "package of $name at $ratio for $place"
            printf '%-8s %5s %-10s %6s %8s %13s %8s %9s\n' "$name" "$ratio" "$place" "$(number forms "$dir/json")" "$(number kernels "$dir/json")" \
                "$(number bytes "$dir/json")" "$(awk "BEGIN { printf \"%.3f\", $(number bytes "$dir/json") / $(number checkpoint_bytes "$dir/json") }")" \
                "$(awk "BEGIN { printf \"%.2f\", $(number seconds "$dir/json") }")"
        done
        if [ -n "$torch" ]; then
            "$nmlp" emit --target trn2 --model "$dir/c" --fuse "$fuse" --buckets 1,40 -o "$dir/p" >/dev/null
            PYTHON=$torch "$dir/p/run.sh" check --cpu >"$dir/out" 2>&1 || fail "logits of $name at $ratio: $(tail -3 "$dir/out")"
            grep logits "$dir/out"
        fi
    done
done
