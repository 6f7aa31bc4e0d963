#!/bin/sh
# The host side of a package, with PyTorch: modules, whole model against the engine, hooks, check and serve. PYTHON names an interpreter
# with torch, transformers and safetensors.
set -eu
nmlp=$1
root=$2
python=""
for candidate in ${PYTHON:-} python3; do
    if "$candidate" -c 'import torch, transformers, safetensors, numpy' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: no Python with torch, transformers and safetensors (set PYTHON); the host side of packages was NOT checked" >&2
    exit 77
fi
dir=$(mktemp -d)
server=""
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
export PYTHONDONTWRITEBYTECODE=1 PYTHON="$python"

"$nmlp" compress "$root/models/tiny" -o "$dir/t" --ratio 0.2 --calib-tokens 512 --heldout 128 --ctx 64 --rounds 0 >/dev/null 2>&1
for target in trn1 trn2; do
    "$nmlp" emit --target $target --model "$dir/t" --buckets 1,40 --fuse none -o "$dir/$target" >/dev/null
    "$nmlp" emit --target $target --model "$dir/t" --buckets 1,40 --fuse none --tp 4 -o "$dir/$target-tp4" >/dev/null
    "$python" "$root/tests/emit/package_host.py" "$nmlp" "$dir/t" "$dir/$target" "$dir/$target-tp4"
done
"$nmlp" emit --target trn2 --model "$dir/t" --buckets 1,40 --lnc 2 -o "$dir/lnc2" >/dev/null
"$python" "$root/tests/emit/package_host.py" "$nmlp" "$dir/t" "$dir/lnc2"
"$nmlp" emit --target trn2 --model "$dir/t" --buckets 1,40 --fuse norm --tp 2 -o "$dir/norm-tp2" >/dev/null
for fuse in norm all; do # the first is the default's choice for lnc2 above
    "$nmlp" emit --target trn2 --model "$dir/t" --buckets 1,40 --fuse $fuse -o "$dir/$fuse" >/dev/null
done
"$python" "$root/tests/emit/package_host.py" "$nmlp" "$dir/t" "$dir/norm" "$dir/norm-tp2"
"$python" "$root/tests/emit/package_host.py" "$nmlp" "$dir/t" "$dir/all"
"$nmlp" quantize "$dir/t" -o "$dir/q" --format fp8 --head bf16 --calib-tokens 512 --heldout 0 --ctx 64 >/dev/null 2>&1
for fuse in none norm; do
    "$nmlp" emit --target trn2 --model "$dir/q" --buckets 1,40 --fuse $fuse -o "$dir/fp8-$fuse" >/dev/null
    "$nmlp" emit --target trn2 --model "$dir/q" --buckets 1,40 --fuse $fuse --tp 2 -o "$dir/fp8-$fuse-tp2" >/dev/null
    "$python" "$root/tests/emit/package_host.py" "$nmlp" "$dir/q" "$dir/fp8-$fuse" "$dir/fp8-$fuse-tp2"
done
"$nmlp" emit --target trn2 --model "$dir/q" --buckets 1,40 --fuse all -o "$dir/fp8-all" >/dev/null
"$python" "$root/tests/emit/package_host.py" "$nmlp" "$dir/q" "$dir/fp8-all"
"$dir/all/run.sh" check --cpu >"$dir/out" || fail "check --cpu of all: $(cat "$dir/out")"

# the two commands, without a device
"$dir/trn2/run.sh" check --cpu >"$dir/out" || fail "check --cpu: $(cat "$dir/out")"
grep -q '^right' "$dir/out" || fail "check --cpu said: $(cat "$dir/out")"
PYTHONPATH="$root/tests/nki_shim" NKI_SHIM_TARGET=trn2 "$dir/trn2/run.sh" check --simulate >"$dir/out" || fail "check --simulate: $(cat "$dir/out")"
"$dir/trn2-tp4/run.sh" check --cpu >"$dir/out" 2>&1 || fail "check with four ranks: $(cat "$dir/out")"
code=0
"$dir/trn2/run.sh" check >"$dir/out" 2>&1 || code=$?
[ "$code" = 2 ] || fail "check without a device: exit $code, expected 2: $(cat "$dir/out")"
code=0
"$dir/trn2/run.sh" nonsense 2>"$dir/out" || code=$?
[ "$code" = 2 ] || fail "run.sh nonsense: exit $code, expected 2"

"$dir/trn2/run.sh" serve --cpu --port 0 >"$dir/serve" 2>&1 &
server=$!
tries=0
until grep -q listening "$dir/serve"; do
    tries=$((tries + 1))
    [ $tries -lt 120 ] || fail "the server did not come up: $(cat "$dir/serve")"
    sleep 0.5
done
"$python" - "$(sed -n 's/^listening on //p' "$dir/serve")" <<'END'
import json, sys, urllib.error, urllib.request
base = sys.argv[1]
def post(body):
    request = urllib.request.Request(base + "/v1/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
assert json.load(urllib.request.urlopen(base + "/health")) == {"status": "ok"}
code, reply = post({"prompt": "Once upon a time", "max_tokens": 8})
assert code == 200 and reply["usage"]["completion_tokens"] == 8 and reply["choices"][0]["text"].strip(), reply
assert post({"prompt": 3})[0] == 400 and post({"prompt": "a", "temperature": 1})[0] == 400
END

# a wrong weight is noticed
"$python" - "$dir/trn2/weights/rank_0.safetensors" <<'END'
import sys
with open(sys.argv[1], "r+b") as file:
    size = int.from_bytes(file.read(8), "little")
    file.seek(8 + size)
    data = bytearray(file.read(1 << 20))
    data[1::2] = bytes(b ^ 0x80 for b in data[1::2])
    file.seek(8 + size)
    file.write(data)
END
code=0
"$dir/trn2/run.sh" check --cpu >"$dir/out" 2>&1 || code=$?
[ "$code" = 1 ] || fail "weights of other sign: exit $code, expected 1: $(tail -2 "$dir/out")"
