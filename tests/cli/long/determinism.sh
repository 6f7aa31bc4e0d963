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
    "$command" quantize "$work/c" -o "$work/q" --format q4 --calib "$work/text" --calib-tokens 256 --heldout 64 --ctx 64 -t $t >/dev/null 2>&1
    tree "$work/q" >"$work/quantize.$t"
    "$command" quantize "$work/c" -o "$work/b" --budget-bytes 5000000 --calib "$work/text" --calib-tokens 256 --heldout 64 --ctx 64 -t $t \
        >/dev/null 2>"$work/err" || { cat "$work/err"; fail "quantize --budget-bytes"; }
    tree "$work/b" >"$work/budget.$t"
    "$command" emit --target trn2 --kernel xuv --shape 128,256,64,256 -t $t >"$work/kernel.$t"
    "$command" recover "$work/c" -o "$work/r" --text "$work/text" --teacher "$tiny" --steps 2 --batch 2 --ctx 32 --heldout 1 --eval-every 1 \
        -t $t >/dev/null 2>&1
    tree "$work/r" >"$work/recover.$t"
    "$command" eval "$work/c" --text "$work/text" --max-tokens 256 --ctx 64 --json -t $t 2>/dev/null |
        sed 's/"seconds":[^,}]*//; s/"tok_s":[^,}]*//' >"$work/eval.$t"
    "$command" plan --target trn2 --op mlp --shape 1,256,64,1024 --json -t $t | sed 's/"seconds":[^,}]*//' >"$work/plan.$t"
    "$command" emit --target trn2 --model "$work/c" --buckets 1 -o "$work/e" -t $t >/dev/null
    tree "$work/e" >"$work/emit.$t"
    rm -rf "$work/r" "$work/e" "$work/q" "$work/b"
    [ $t = 3 ] || rm -rf "$work/c"
done
for name in compress quantize budget recover eval plan kernel emit; do
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

# What is made with other kernel sets: perplexities of the results, within the bounds of docs/evaluation.md. GPTQ's choices between two
# neighbours follow the last bits of its sums.
made_with() {
    "$command" compress "$tiny" -o "$work/c" --ratio 0.3 --calib "$work/text" --calib-tokens 256 --heldout 64 --ctx 64 --rounds 0 --isa $1 \
        >/dev/null 2>&1 || fail "compress --isa $1"
    "$command" recover "$work/c" -o "$work/r" --text "$work/text" --teacher "$tiny" --steps 2 --batch 2 --ctx 32 --heldout 1 --eval-every 1 \
        --isa $1 >/dev/null 2>&1 || fail "recover --isa $1"
    "$command" quantize "$work/c" -o "$work/q" --format q8 --calib "$work/text" --calib-tokens 256 --heldout 64 --ctx 64 --isa $1 >/dev/null 2>&1 ||
        fail "quantize --isa $1"
    for made in c r q; do
        "$command" eval "$work/$made" --text "$work/text" --max-tokens 512 --ctx 64 --isa ref --json 2>/dev/null | sed 's/.*"ppl":\([0-9.e+]*\).*/\1/'
    done >"$work/made.$1"
    rm -rf "$work/c" "$work/r" "$work/q"
}
made_with ref
if grep -qw avx2 /proc/cpuinfo; then
    made_with avx2
    paste "$work/made.ref" "$work/made.avx2" | awk '
        { d = ($1 - $2) / $1; if (d < 0) d = -d; split("compress recover quantize", name, " "); split("1e-3 1e-3 1e-2", bound, " ")
          printf "%s: ref %s, avx2 %s\n", name[NR], $1, $2; if (!(d < bound[NR] && $1 > 1)) bad = 1 }
        END { exit bad || NR != 3 }' || fail "avx2 and ref make other models"
fi
echo ok
