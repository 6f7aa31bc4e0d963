#!/bin/sh
# neuronmlp simulate as a user drives it: JSON keys, machine files, traces, errors.
set -eu
nmlp=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }

"$nmlp" simulate --target trn1 --kernel xtuv-fused --shape 300,400,130,700 --check --json >"$dir/a.json"
for key in latency_us hbm_read_bytes hbm_write_bytes spill_bytes flops tensor_utilisation engines max_rel_err; do
    grep -q "\"$key\"" "$dir/a.json" || fail "JSON lacks $key"
done
"$nmlp" simulate --target trn1 --kernel xtuv-fused --shape 300,400,130,700 --check --json >"$dir/b.json"
cmp -s "$dir/a.json" "$dir/b.json" || fail "two runs differ"

"$nmlp" simulate --target trn2 --kernel xw-opt --shape 256,512,1024 --dtype fp32 --trace "$dir/t.json" >"$dir/out"
grep -q traceEvents "$dir/t.json" || fail "no trace"
grep -q "simulated" "$dir/out" || fail "human output does not say simulated"
"$nmlp" simulate --target trn2 --kernel xw-opt --shape 256,512,1024 --trace "$dir/t.svg" >"$dir/out"
head -c 4 "$dir/t.svg" | grep -q "<svg" || fail "no SVG"

sed 's/^name .*/name mine/; s/^dma_start_ns .*/dma_start_ns 50000 [documented] a slow day/' "$2/src/trainium/neuron/machines/trn1.machine" >"$dir/mine.machine"
"$nmlp" simulate --target "$dir/mine.machine" --kernel xw-tiled --shape 128,128,512 --json | grep -q '"target":"mine"' || fail "machine file ignored"
echo "psum_banks many [documented] x" >"$dir/bad.machine"
if "$nmlp" simulate --target "$dir/bad.machine" --kernel xw-opt --shape 1,1,1 2>"$dir/err"; then fail "bad machine accepted"; fi
grep -q "bad.machine:1: key \"psum_banks\"" "$dir/err" || fail "bad machine: no line and key"

code=0; "$nmlp" simulate --target trn1 --kernel nothing --shape 1,1,1 2>"$dir/err" || code=$?
[ "$code" = 2 ] || fail "unknown kernel: exit $code"
grep -q "xtuv-fused" "$dir/err" || fail "unknown kernel: no list"
code=0; "$nmlp" simulate --target trn1 --kernel xw-opt 2>"$dir/err" || code=$?
[ "$code" = 2 ] || fail "missing shape: exit $code"
code=0; "$nmlp" simulate --target trn1 --kernel xw-opt --shape 1,2,3,4 2>"$dir/err" || code=$?
[ "$code" = 2 ] || fail "wrong shape: exit $code"
# norm before and residual after the MLP, in the kernel: rows of x of different size, so that both change the result
for target in trn1 trn2; do
    for form in "--ranks gate=24,up=24,down=dense --shared" "--ranks gate=dense,up=40,down=24" "--tiling ac=1"; do
        # shellcheck disable=SC2086 # several options
        "$nmlp" simulate --target $target --kernel mlp --shape 9,200,0,300 $form --norm 1e-6 --residual --check >"$dir/out" || fail "fused $form: $(cat "$dir/out")"
    done
done
code=0; "$nmlp" simulate --target trn1 --kernel xuv --shape 1,128,128,128 --norm 1e-6 2>"$dir/err" || code=$?
[ "$code" = 2 ] && grep -q "for kernel mlp" "$dir/err" || fail "norm of another kernel: exit $code, $(cat "$dir/err")"
code=0; "$nmlp" simulate --target trn1 --kernel mlp --shape 1,128,128,128 --norm 2 2>"$dir/err" || code=$?
[ "$code" = 2 ] || fail "epsilon of 2: exit $code"
echo "simulate: ok"
