#!/bin/sh
# quantize as typed: what it writes can be read and run, has the bytes its format says, is close to its source, does not depend on threads, resumes
# to the same bytes, and takes factors.
. "$2/tests/lib/cli.sh"
few="--calib-tokens 512 --heldout 256 --ctx 128"

refused() { # refused CODE TEXT ARGS…
    want=$1 text=$2 status=0
    shift 2
    "$command" quantize "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -eq "$want" ] || { cat "$work/err"; fail "exit $status instead of $want: $*"; }
    has "$work/err" "$text"
}
# below NUMBER KEY FILE: the key's value in the JSON is less
below() { sed -n "s/.*\"$2\":\([0-9.e-]*\).*/\1/p" "$3" | awk -v most="$1" '{ exit !($1 < most) }' || { cat "$3"; fail "$2 is not below $1"; }; }

"$command" quantize "$tiny" -o "$work/q8" --format q8 $few --threads 1 --json >"$work/q8.json" 2>"$work/err"
below 0.002 kl "$work/q8.json"
below 8.2 bits_per_weight "$work/q8.json"
"$command" info "$work/q8" --json >"$work/info.json"
has "$work/info.json" '"Q8":29'
"$command" logits "$work/q8" --ids 5,9 >/dev/null
has "$work/q8/README.md" "base_model: tiny"
has "$work/q8/README.md" "| KL divergence from the original, nats per token | 0.00"
[ ! -e "$work/q8.work.partial" ] || fail "work folder left behind"

# 4 bits: the same bytes with two threads, and after a kill behind the first layer.
"$command" quantize "$tiny" -o "$work/q4" --format q4 $few --threads 1 --json >"$work/q4.json"
# The page of a quantised model: bits of every matrix, as info counts them.
"$command" report "$work/q4" -o "$work/q4.html" --rows-max 2048 >/dev/null
bits=$(printf %.2f "$("$command" info "$work/q4" --json | sed -n 's/.*"bits_per_weight":\([0-9.]*\).*/\1/p')")
grep -q 'id="bits"' "$work/q4.html" && grep -qF ">$bits bits<" "$work/q4.html" && grep -qF ">q4 g32<" "$work/q4.html" || fail "bits of matrices on the page"
below 0.2 kl "$work/q4.json"
below 5.8 bits_per_weight "$work/q4.json"
"$command" quantize "$tiny" -o "$work/two" --format q4 $few --threads 2 >/dev/null 2>&1
cmp "$work/q4/model.safetensors" "$work/two/model.safetensors" || fail "bytes depend on the number of threads"
"$command" quantize "$tiny" -o "$work/killed" --format q4 $few --threads 1 >/dev/null 2>&1 &
pid=$!
tries=0
while [ ! -e "$work/killed.work.partial/layer-00001.quant" ] && [ "$tries" -lt 600 ] && kill -0 "$pid" 2>/dev/null; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -9 "$pid" 2>/dev/null || true
wait "$pid" 2>/dev/null || true
"$command" quantize "$tiny" -o "$work/killed" --format q4 $few --threads 1 --resume >/dev/null 2>&1
cmp "$work/q4/model.safetensors" "$work/killed/model.safetensors" || fail "resume makes other bytes"
cmp "$work/q4/config.json" "$work/killed/config.json" || fail "resume makes another config"

# Zero points: closer than without them, a little larger; read, expanded and trained as the others are.
"$command" quantize "$tiny" -o "$work/q4z" --format q4z --head q4z $few --threads 1 --json >"$work/q4z.json"
"$command" quantize "$tiny" -o "$work/q4s" --format q4 --head q4 $few --threads 1 --json >"$work/q4s.json"
value() { sed -n "s/.*\"$2\":\([0-9.e-]*\).*/\1/p" "$1"; }
below "$(value "$work/q4s.json" kl)" kl "$work/q4z.json"
below "$(value "$work/q4s.json" bits_per_weight | awk '{ print $1 + 0.13 }')" bits_per_weight "$work/q4z.json"
has "$work/q4z/config.json" '"symmetric":false'
"$command" logits "$work/q4z" --ids 5,9 --json >"$work/z.json"
"$command" expand "$work/q4z" -o "$work/wide" >/dev/null
"$command" logits "$work/wide" --ids 5,9 --json >"$work/w.json"
# Zero points left out, or with another sign, would put logits whole units apart.
numbers() { sed 's/.*"logits":\[\[\([^]]*\)\].*/\1/' "$1" | tr ',' '\n'; }
numbers "$work/z.json" >"$work/z.txt"
numbers "$work/w.json" | paste "$work/z.txt" - | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d } END { exit !(NR > 100 && most < 0.2) }' ||
    fail "expand has other logits"

# Floats of 8 bits: less exact than integers, closer than 4 bits; counted, expanded to the same logits; a NaN among them is named.
"$command" quantize "$tiny" -o "$work/fp8" --format fp8 --head fp8 $few --threads 1 --json >"$work/fp8.json"
has "$work/fp8.json" '"format":"fp8"'
below 0.02 kl "$work/fp8.json"
below 8.2 bits_per_weight "$work/fp8.json"
"$command" info "$work/fp8" --json >"$work/info.json"
has "$work/info.json" '"FP8":29'
has "$work/fp8/config.json" '"format":"float-quantized"'
# expands_within MODEL WIDE MOST: logits of MODEL and of what expand writes differ by less than MOST
expands_within() {
    "$command" logits "$work/$1" --ids 5,9 --json >"$work/z.json"
    "$command" expand "$work/$1" -o "$work/$2" >/dev/null
    "$command" logits "$work/$2" --ids 5,9 --json >"$work/w.json"
    numbers "$work/z.json" >"$work/z.txt"
    numbers "$work/w.json" | paste "$work/z.txt" - | awk -v limit="$3" '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d } END { exit !(NR > 100 && most < limit) }' ||
        fail "expand of $1 has other logits"
}
expands_within fp8 wide8 0.1
bytes=$(wc -c <"$work/fp8/model.safetensors")
header=$(od -An -tu8 -N8 "$work/fp8/model.safetensors" | tr -d ' ')
head -c $((header + 8)) "$work/fp8/model.safetensors" >"$work/fp8/new"
head -c $((bytes - header - 8)) /dev/zero | tr '\000' '\177' >>"$work/fp8/new"
mv "$work/fp8/new" "$work/fp8/model.safetensors"
status=0
"$command" logits "$work/fp8" --ids 5,9 >/dev/null 2>"$work/err" || status=$?
[ "$status" -eq 1 ] || fail "codes that are no numbers: exit $status"
has "$work/err" "holds NaN"

# 6 bits: between 4 and 8 in bytes and loss; counted, expanded to the same logits, beside other formats as a head; training keeps the format.
"$command" quantize "$tiny" -o "$work/q6" --format q6 --head q6 $few --threads 1 --json >"$work/q6.json"
below 0.03 kl "$work/q6.json"
below 6.12 bits_per_weight "$work/q6.json"
below "$(value "$work/q6.json" kl)" kl "$work/q8.json"
"$command" info "$work/q6" --json >"$work/info.json"
has "$work/info.json" '"Q6":29'
has "$work/q6/config.json" '"num_bits":6'
expands_within q6 wide6 0.2
"$command" export "$work/q6" -o "$work/q6.gguf" --type q8_0 >/dev/null || fail "6 bits cannot be exported"
"$command" quantize "$tiny" -o "$work/h6" --format q4z --head q6 $few --threads 1 --json >"$work/h6.json"
has "$work/h6.json" '"head":"q6"'
below "$(value "$work/q4z.json" kl)" kl "$work/h6.json"

# Multipliers: 6 bits closer than with one scale a row; 4 bits closer than in groups of 32 with f16 scales, and smaller.
for bits in 4 5 6; do
    "$command" quantize "$tiny" -o "$work/q${bits}m" --format q${bits}m --head q6m $few --threads 1 --json >"$work/q${bits}m.json"
    below "0.06" kl "$work/q${bits}m.json"
    has "$work/q${bits}m.json" '"head":"q6m"'
    "$command" info "$work/q${bits}m" --json >"$work/info.json"
    has "$work/info.json" "\"Q${bits}M\":2"
    has "$work/q${bits}m/config.json" '"neuronmlp-packed"'
    "$command" logits "$work/q${bits}m" --ids 5,9 --json >"$work/z.json"
    "$command" expand "$work/q${bits}m" -o "$work/wide" >/dev/null
    "$command" logits "$work/wide" --ids 5,9 --json >"$work/w.json"
    numbers "$work/z.json" >"$work/z.txt"
    numbers "$work/w.json" | paste "$work/z.txt" - | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d } END { exit !(NR > 100 && most < 0.2) }' ||
        fail "expand of $bits bits with multipliers has other logits"
    rm -rf "$work/wide"
done
below "$(value "$work/q6.json" kl)" kl "$work/q6m.json"
below "$(value "$work/q5m.json" kl)" kl "$work/q6m.json"
below "$(value "$work/q4m.json" kl)" kl "$work/q5m.json"
"$command" quantize "$tiny" -o "$work/h4" --format q4 --head q6m $few --threads 1 --json >"$work/h4.json"
below "$(value "$work/h4.json" kl)" kl "$work/q4m.json"
below "$(value "$work/h4.json" bits_per_weight)" bits_per_weight "$work/q4m.json"

# Factors: quantised too, close to the compressed model, and still known as compressed.
"$command" compress "$tiny" -o "$work/u" --ratio 0.3 --alloc uniform --recover none --tile 64 $few >/dev/null 2>&1
"$command" quantize "$work/u" -o "$work/u8" --format q8 $few --json >"$work/u8.json"
below 0.004 kl "$work/u8.json"
"$command" info "$work/u8" --json >"$work/info.json"
has "$work/info.json" '"mlp_lowrank":12'
"$command" quantize "$work/u" -o "$work/u4" --format q4 --group 64 --head bf16 $few --json >"$work/u4.json"
below 0.4 kl "$work/u4.json"

# Factors of attentions: info counts them, they run as expand says, and training refuses them by name.
"$command" compress "$tiny" -o "$work/a" --modules mlp,attn --ratio 0.3 --alloc uniform --recover none --tile 64 $few >/dev/null 2>&1
"$command" quantize "$work/a" -o "$work/a4" --format q4 $few --json >"$work/a4.json"
below 0.4 kl "$work/a4.json"
"$command" info "$work/a4" --json >"$work/info.json"
has "$work/info.json" '"attention_lowrank":16'
expands_within a4 awide 0.2
status=0
"$command" recover "$work/a4" -o "$work/x" --text "$tiny/calib.txt" --teacher "$tiny" --steps 2 >/dev/null 2>"$work/err" || status=$?
[ "$status" -eq 1 ] || fail "recover exits with $status"
has "$work/err" "training does not know factorised attention"

# Quantised factors are trained through their rounding: the same format, other codes, no worse on held-out text.
"$command" recover "$work/u4" -o "$work/trained" --text "$tiny/calib.txt" --teacher "$tiny" --steps 6 --batch 2 --ctx 64 --heldout 2 \
    --eval-every 2 --explore 0 --lr 1e-3 --json >"$work/trained.json" 2>/dev/null
before=$(sed -n 's/.*"heldout_ppl_before":\([0-9.e-]*\).*/\1/p' "$work/trained.json")
after=$(sed -n 's/.*"heldout_ppl_after":\([0-9.e-]*\).*/\1/p' "$work/trained.json")
awk -v a="$after" -v b="$before" 'BEGIN { exit !(a < b) }' || fail "training did not help: $before -> $after"
cmp -s "$work/u4/model.safetensors" "$work/trained/model.safetensors" && fail "no code changed"
[ "$(wc -c <"$work/u4/model.safetensors")" -eq "$(wc -c <"$work/trained/model.safetensors")" ] || fail "another format"
"$command" logits "$work/trained" --ids 5,9 >/dev/null
"$command" quantize "$work/u" -o "$work/f8" --format fp8 --head bf16 $few --heldout 0 >/dev/null 2>&1
"$command" recover "$work/f8" -o "$work/trained8" --text "$tiny/calib.txt" --teacher "$tiny" --steps 6 --batch 2 --ctx 64 --heldout 2 \
    --eval-every 2 --explore 0 --lr 1e-3 >/dev/null 2>&1 || fail "factors in fp8 cannot be trained"
cmp -s "$work/f8/model.safetensors" "$work/trained8/model.safetensors" && fail "no code changed"
[ "$(wc -c <"$work/f8/model.safetensors")" -eq "$(wc -c <"$work/trained8/model.safetensors")" ] || fail "another format"

"$command" quantize "$work/u" -o "$work/f6" --format q5m --head bf16 $few --heldout 0 >/dev/null 2>&1
"$command" recover "$work/f6" -o "$work/trained6" --text "$tiny/calib.txt" --teacher "$tiny" --steps 6 --batch 2 --ctx 64 --heldout 2 \
    --eval-every 2 --explore 0 --lr 1e-3 >/dev/null 2>&1 || fail "factors in 5 bits cannot be trained"
cmp -s "$work/f6/model.safetensors" "$work/trained6/model.safetensors" && fail "no code changed"
[ "$(wc -c <"$work/f6/model.safetensors")" -eq "$(wc -c <"$work/trained6/model.safetensors")" ] || fail "another format"

# A budget: a format for each matrix, within it, and closer than 4 bits for all with as many bytes.
"$command" quantize "$tiny" -o "$work/mixed" --budget-bytes 4347000 $few --json >"$work/mixed.json"
has "$work/mixed.json" '"format":"mixed"'
below 4347001 bytes_after "$work/mixed.json"
kl() { sed -n 's/.*"kl":\([0-9.e-]*\).*/\1/p' "$1"; }
awk -v mixed="$(kl "$work/mixed.json")" -v all="$(kl "$work/q4.json")" 'BEGIN { exit !(mixed < all) }' ||
    fail "mixed formats lose more than one: $(kl "$work/mixed.json"), $(kl "$work/q4.json")"
refused 1 "with all weights in 4 bits" "$tiny" -o "$work/x" --budget-bytes 2000000 $few
refused 2 "exclude each other" "$tiny" -o "$work/x" --budget-bytes 2000000 --format q4

refused 2 "must be q8, q6, q6m, q5m, q4, q4z, q4m or fp8" "$tiny" -o "$work/x" --format q5
refused 2 "32 or 64" "$tiny" -o "$work/x" --format q4 --group 48
refused 2 "-o DIR is needed" "$tiny" --format q4
refused 1 "quantised weights already" "$work/q8" -o "$work/x" --format q4 $few
[ ! -e "$work/x" ] || fail "something was written"
