#!/bin/sh
# From checkpoint to package: what `compress` writes with its defaults (mixed ranks, shared bases, dense matrices) has
# kernels for every layer and weights packed once, checked by an independent reader; what would be lost is refused.
set -eu
nmlp=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
refuses() { # exit code, part of the message, arguments
    code=0
    want=$1 part=$2
    shift 2
    "$nmlp" "$@" >"$dir/out" 2>"$dir/err" || code=$?
    [ "$code" = "$want" ] || fail "$*: exit $code, expected $want"
    grep -q -- "$part" "$dir/err" || fail "$*: \"$part\" not in: $(cat "$dir/err")"
}

"$nmlp" compress "$root/models/tiny" -o "$dir/t" --ratio 0.2 --calib-tokens 512 --heldout 128 --ctx 64 --rounds 0 >/dev/null 2>&1
grep -q shared "$dir/t/config.json" || fail "the compressed model has no shared basis; the test needs mixed forms"
for target in trn1 trn2 trn3; do
    case $target in trn1) fuse=none ;; trn2) fuse=auto ;; *) fuse=all ;; esac
    "$nmlp" emit --target $target --model "$dir/t" --buckets 1,40 --fuse $fuse -o "$dir/$target" --json >"$dir/$target.json"
    for key in file tp fused layers forms kernels instructions bytes checkpoint_bytes simulated_us; do
        grep -q "\"$key\":" "$dir/$target.json" || fail "$target: no $key in the JSON"
    done
done
"$nmlp" emit --target trn2 --model "$dir/t" --buckets 1,40 --fuse norm --tp 4 -o "$dir/trn2-tp4" >/dev/null
"$nmlp" emit --target trn3 --model "$dir/t" --buckets 1,40 --fuse norm --tp 2 --lnc 2 -o "$dir/trn3-lnc2" >/dev/null
# factors of slices: each core has its own, on ranks and on joined cores
"$nmlp" compress "$root/models/tiny" -o "$dir/s" --ratio 0.3 --shards 2 --tile 8 --calib-tokens 512 --heldout 128 --ctx 64 --rounds 0 >/dev/null 2>&1
"$nmlp" emit --target trn1 --model "$dir/s" --buckets 1,40 --fuse none --tp 2 -o "$dir/slices-tp2" >/dev/null
"$nmlp" emit --target trn2 --model "$dir/s" --buckets 1,40 --fuse norm --lnc 2 -o "$dir/slices-lnc2" >/dev/null
# weights in fp8 stay fp8, on ranks and on joined cores
"$nmlp" quantize "$dir/t" -o "$dir/q" --format fp8 --head bf16 --calib-tokens 512 --heldout 0 --ctx 64 >/dev/null 2>&1
"$nmlp" emit --target trn1 --model "$dir/q" --buckets 1,40 --fuse none -o "$dir/fp8-trn1" --json | grep -q '"weights":"fp8"' || fail "fp8 weights were widened"
"$nmlp" emit --target trn3 --model "$dir/q" --buckets 1,40 --fuse norm --tp 2 --lnc 2 -o "$dir/fp8-trn3" >/dev/null
"$nmlp" emit --target trn2 --model "$dir/q" --buckets 1,40 --fuse all -o "$dir/fp8-trn2" >/dev/null
"$nmlp" predict llama-3.2-1b --target trn2 --prompt 32 --generate 4 --fp8 --cache "$dir/plans" --json >"$dir/fp8.json"
sed 's/.*"speedup":\([0-9.]*\).*/\1/' "$dir/fp8.json" | awk '{ exit !($1 > 1.2 && $1 < 2) }' || fail "fp8 does not help decode: $(cat "$dir/fp8.json")"
refuses 2 "is for our kernels" predict llama-3.2-1b --target trn2 --fp8 --mlp aws
refuses 2 "does not mix" plan --target trn2 --op mlp --shape 1,256,0,512 --fp8 --dtype fp32
refuses 2 "kernel mlp only" simulate --target trn2 --kernel xuv --shape 1,256,128,512 --fp8
refuses 2 "2 slices" emit --target trn2 --model "$dir/s" --tp 4 -o "$dir/new"
"$nmlp" predict "$dir/s" --target trn2 --tp 2 --prompt 64 --generate 4 --json | grep -q '"split":"slices"' || fail "predict does not know slices"
refuses 2 "must divide" predict "$dir/s" --target trn2 --tp 4 --prompt 64 --generate 4
"$nmlp" predict llama-3.2-1b --target trn2 --ratio 0.2 --tp 8 --prompt 32 --generate 4 --cache "$dir/plans" --json | grep -q '"best_split":"slices"' ||
    fail "predict does not choose slices for eight cores"
grep -q '"fused":"norm"' "$dir/trn2.json" || fail "norms of their own are not slower than in the kernels"
[ -x "$dir/trn2/run.sh" ] || fail "run.sh is not executable"
"$nmlp" predict "$dir/t" --target trn2 --prompt 64 --generate 4 --json | grep -q '"shared":true' ||
    fail "predict does not use the checkpoint's own ranks"

# written twice: the same bytes; an older package is replaced
cp -r "$dir/trn2" "$dir/before"
"$nmlp" emit --target trn2 --model "$dir/t" --buckets 1,40 -o "$dir/trn2" >/dev/null
diff -r "$dir/before" "$dir/trn2" || fail "two packages of one checkpoint differ"

mkdir "$dir/foreign"
echo precious >"$dir/foreign/notes"
refuses 2 "something else than a package" emit --target trn2 --model "$dir/t" -o "$dir/foreign"
[ "$(cat "$dir/foreign/notes")" = precious ] || fail "a foreign folder was touched"
refuses 2 "cannot share" emit --target trn2 --model "$dir/t" --tp 7 -o "$dir/new"
refuses 2 "trn1 joins no cores" emit --target trn1 --model "$dir/t" --lnc 2 -o "$dir/new"
refuses 2 "1 or 2 physical" emit --target trn2 --model "$dir/t" --lnc 4 -o "$dir/new"
refuses 2 "tp" emit --target trn2 --model "$dir/t" --tp 0 -o "$dir/new"
refuses 2 "add the residual" emit --target trn2 --model "$dir/t" --tp 2 --fuse all -o "$dir/new"
refuses 2 "expected auto, none" emit --target trn2 --model "$dir/t" --fuse some -o "$dir/new"
refuses 2 "buckets" emit --target trn2 --model "$dir/t" --buckets 40,1 -o "$dir/new"
refuses 2 "2.29 to 2.32" emit --target trn2 --model "$dir/t" --sdk 2.27 -o "$dir/new"
refuses 2 "2.23 to 2.26" emit --target trn1 --kernel xw --shape 8,128,128 --sdk 2.29
refuses 2 "needs --target and -o" emit --model "$dir/t" --target trn2
refuses 2 "do not go with it" emit --model "$dir/t" --target trn2 --kernel mlp -o "$dir/new"
[ ! -e "$dir/new" ] || fail "something was written by a refused command"
refuses 2 "ranks" plan --target trn2 --op xuv --shape 1,256,128,512 --ranks gate=8
refuses 2 "same rank" plan --target trn2 --op mlp --shape 1,256,0,512 --ranks gate=8,up=16 --shared
refuses 2 "expected gate=" plan --target trn2 --op mlp --shape 1,256,0,512 --ranks side=8

python=""
for candidate in ${PYTHON:-} python3 /usr/bin/python3; do
    if "$candidate" -c 'import numpy' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: no python3 with NumPy (Debian: python3-numpy); packages were NOT checked" >&2
    exit 77
fi
for target in trn1 trn2 trn3 trn2-tp4 trn3-lnc2; do
    PYTHONDONTWRITEBYTECODE=1 "$python" "$root/tests/emit/package_check.py" "$dir/$target" "$dir/t"
done
for target in fp8-trn1 fp8-trn2 fp8-trn3; do
    PYTHONDONTWRITEBYTECODE=1 "$python" "$root/tests/emit/package_check.py" "$dir/$target" "$dir/q" "$nmlp"
done
for target in slices-tp2 slices-lnc2; do
    PYTHONDONTWRITEBYTECODE=1 "$python" "$root/tests/emit/package_check.py" "$dir/$target" "$dir/s"
done
