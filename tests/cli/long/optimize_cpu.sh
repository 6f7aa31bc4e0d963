#!/bin/sh
# optimize on this CPU: within the loss, no slower than any single form within it, goes on after a kill, and trains within minutes.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
few="--calib-tokens 1024 --heldout 1024 --verify 1024 --ctx 128"

fail() { echo "FAILED: $1"; exit 1; }
has() { grep -qF -- "$2" "$1" || { cat "$1"; fail "\"$2\" not in output"; }; }

"$command" optimize "$tiny" -o "$work/fast" --max-loss 2% --workload batch=4 $few --json >"$work/fast.json" 2>"$work/err" &
pid=$!
tries=0
while [ ! -e "$work/fast.work.partial/times" ] && kill -0 $pid 2>/dev/null && [ $tries -lt 4000 ]; do sleep 0.05; tries=$((tries + 1)); done
kill -9 $pid 2>/dev/null || true
wait $pid 2>/dev/null || true
[ ! -e "$work/fast" ] || fail "it was done before it could be killed"
"$command" optimize "$tiny" -o "$work/fast" --max-loss 2% --workload batch=4 $few --resume --json >"$work/fast.json" 2>"$work/err"
has "$work/fast.json" '"name":"q8"'
has "$work/fast.json" '"name":"q4, q8 head"'
has "$work/fast.json" '"simulated":false'
# Of those timed in repeats (with a range) the one written is the fastest by the median, or one that loses less; it is never slower than dense.
[ "$(sed -n 's/.*"repeats":\([0-9]*\).*/\1/p' "$work/fast.json")" -eq 7 ] || { cat "$work/fast.json"; fail "not compared in repeats"; }
tr '{' '\n' <"$work/fast.json" | sed -n 's/"name":"[^"]*","loss":\([-0-9.e]*\),"loss_error":[-0-9.e]*,.*"speedup":\([0-9.e-]*\),"speedup_low":\([0-9.e-]*\),"speedup_high":\([0-9.e-]*\),.*"within":\([a-z]*\),"refused":\([a-z]*\),"chosen":\([a-z]*\).*/\1 \2 \3 \4 \5 \6 \7/p' >"$work/points"
awk '$5 != "true" || $6 != "false" || $3 > $2 + 1e-9 || $4 < $2 - 1e-9 { bad = 1 }
    $7 == "true" { n++; loss = $1; speed = $2 } $2 > best { best = $2; best_loss = $1 } NR == 1 && ($2 != 1 || $1 != 0) { bad = 1 }
    END { exit bad || n != 1 || NR < 2 || speed < 1 || (speed > 1 && speed < best && loss >= best_loss) }' "$work/points" || { cat "$work/fast.json"; fail "not the fastest within the loss"; }

# The loss again by the command that compares models: on the same text it must be near.
"$command" eval "$work/fast" "$tiny/calib.txt" --kl "$tiny" --ctx 128 --max-tokens 4096 --json >"$work/kl.json"
awk -v kl="$(sed -n 's/.*"same_top.*//; s/.*"kl":\([0-9.e-]*\),"nll":.*"texts".*/\1/p' "$work/kl.json" | head -n 1)" 'BEGIN { exit !(kl < 0.1) }' || fail "far from the dense model: $(cat "$work/kl.json")"

# Minutes: a faster model is trained as well, and is one of the points.
"$command" optimize "$tiny" -o "$work/trained" --max-loss 2% --workload batch=4 --minutes 0.2 $few --json >"$work/trained.json" 2>"$work/err"
has "$work/trained.json" '"name":"trained"'
# A bound that nothing keeps: the model as it is, and the command says so.
"$command" optimize "$tiny" -o "$work/same" --for trn1 --workload prompt --max-loss 0.1% $few >"$work/out" 2>/dev/null
has "$work/out" "leave it dense"
"$command" logits "$tiny" --ids 5,9,200 >"$work/a"
"$command" logits "$work/same" --ids 5,9,200 >"$work/b"
cmp "$work/a" "$work/b" || fail "the model as it is has other logits"

echo "optimize: ok"
