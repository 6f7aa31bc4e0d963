#!/bin/sh
# The emit command: files and stdout, JSON keys, the same bytes twice, dialect by target, errors with the right exit code.
set -eu
command=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "FAILED: $1" >&2; exit 1; }
expect_exit() { # code, words…
    want=$1
    shift
    code=0
    "$@" >"$work/out" 2>"$work/err" || code=$?
    [ "$code" -eq "$want" ] || fail "exit $code, expected $want: $*"
}

set -- emit --target trn2 --kernel xuv --shape 64,256,128,512
"$command" "$@" >"$work/a.py"
"$command" "$@" -o "$work/b.py" >/dev/null
cmp "$work/a.py" "$work/b.py" || fail "stdout and file differ"
grep -q '^import nki$' "$work/a.py" || fail "trn2 is not printed in the current dialect"
"$command" emit --target trn1 --kernel xuv --shape 64,256,128,512 | grep -q 'from neuronxcc import nki' || fail "trn1 is not legacy"

"$command" "$@" -o "$work/b.py" --json >"$work/json"
for key in '"file"' '"instructions"' '"dialect"' '"latency_us"'; do
    grep -q "$key" "$work/json" || fail "JSON lacks $key"
done
"$command" "$@" --json | grep -q '"source"' || fail "JSON without a file lacks the source"
"$command" "$@" --module | grep -q 'class NeuronLowRankLinear(torch.nn.Module)' || fail "no module"

expect_exit 2 "$command" emit --target trn2 --kernel xuv
expect_exit 2 "$command" emit --target trn2 --kernel nothing --shape 1,2,3
grep -q 'xw-opt' "$work/err" || fail "an unknown kernel does not list the known ones"
expect_exit 2 "$command" emit --target trn2 --kernel xuv --shape 1,2,3
expect_exit 2 "$command" emit --target trn2 --kernel xuv --shape 64,256,128,512 --dialect triton
expect_exit 1 "$command" emit --target trn1 --kernel xuv --shape 64,256,128,512 --module
grep -q 'current dialect only' "$work/err" || fail "module in the legacy dialect: no reason given"
expect_exit 1 "$command" emit --target trn2 --kernel xuv --shape 64,256,128,512 -o "$work/none/x.py"
echo "emit: ok"
