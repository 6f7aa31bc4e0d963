#!/bin/sh
# Same input, options and version: the same bytes on any number of threads. Across kernel sets: within a bound.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
fail() { echo "FAILED: $1"; exit 1; }
head -c 20000 "$tiny/calib.txt" >"$work/text"
tree() { (cd "$1" && find . -type f | LC_ALL=C sort | xargs cksum); }
same() { cmp "$work/$1.1" "$work/$1.$2" || fail "$1: other bytes with $2 threads"; }

for t in 1 2 3; do
    "$command" compress "$tiny" -o "$work/c" --ratio 0.3 --calib "$work/text" --calib-tokens 256 --heldout 64 --ctx 64 --rounds 0 -t $t \
        >/dev/null 2>&1
    tree "$work/c" >"$work/compress.$t"
    "$command" recover "$work/c" -o "$work/r" --text "$work/text" --teacher "$tiny" --steps 2 --batch 2 --ctx 32 --heldout 1 --eval-every 1 \
        -t $t >/dev/null 2>&1
    tree "$work/r" >"$work/recover.$t"
    "$command" eval "$work/c" --text "$work/text" --max-tokens 256 --ctx 64 --json -t $t 2>/dev/null |
        sed 's/"seconds":[^,}]*//; s/"tok_s":[^,}]*//' >"$work/eval.$t"
    "$command" plan --target trn2 --op mlp --shape 1,256,64,1024 --json -t $t | sed 's/"seconds":[^,}]*//' >"$work/plan.$t"
    "$command" emit --target trn2 --model "$work/c" --buckets 1 -o "$work/e" -t $t >/dev/null
    tree "$work/e" >"$work/emit.$t"
    rm -rf "$work/r" "$work/e"
    [ $t = 3 ] || rm -rf "$work/c"
done
for name in compress recover eval plan emit; do
    [ -s "$work/$name.1" ] || fail "$name: no output"
    same $name 2
    same $name 3
done

# Kernel sets differ in the order of sums only: perplexities agree to 1e-4 of their value, as docs/evaluation.md says.
for isa in ref avx2; do
    [ $isa = ref ] || grep -qw avx2 /proc/cpuinfo || continue
    "$command" eval "$work/c" --text "$work/text" --max-tokens 256 --ctx 64 --isa $isa --json 2>/dev/null |
        sed 's/.*"ppl":\([0-9.e+]*\).*/\1/' >"$work/ppl.$isa"
    sed 's/.*"ppl":\([0-9.e+]*\).*/\1/' "$work/eval.1" >"$work/ppl"
    paste "$work/ppl" "$work/ppl.$isa" | awk -v isa=$isa '
        { d = ($1 - $2) / $1; if (d < 0) d = -d; printf "%s: perplexity %s, here %s\n", isa, $2, $1; exit !(d < 1e-4 && $1 > 1) }' ||
        fail "$isa: perplexity out of its bound"
done
echo ok
