#!/bin/sh
# optimize as typed: the answer is the fastest form within the loss, its checkpoint, page and card are there, and what cannot be done is said at once.
. "$2/tests/lib/cli.sh"
few="--calib-tokens 256 --heldout 128 --verify 128 --ctx 64 --threads 1"

refused() { # refused CODE TEXT MODEL ARGS…
    want=$1 text=$2 status=0
    shift 2
    "$command" optimize "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -eq "$want" ] || { cat "$work/err"; fail "exit $status instead of $want: $*"; }
    has "$work/err" "$text"
}

# A machine with slow memory, where lower ranks save time, and much may be lost.
sed 's/^name .*/name slow/; s/^\(dma_bytes_per_ns\|dma_small_bytes_per_ns\) .*/\1 0.8 [documented] a slow day/' \
    "$root/src/trainium/neuron/machines/trn1.machine" >"$work/slow.machine"
"$command" optimize "$tiny" -o "$work/fast" --for "$work/slow.machine" --tile 16 --workload batch=1 --max-loss 90% $few --json >"$work/fast.json" 2>"$work/err"
has "$work/err" "minutes and"
has "$work/fast.json" '"simulated":true'
has "$work/fast.json" '"verdict":"ranks only"'
# Of the points within the loss none is faster than the one written, and that one is within it.
tr '{' '\n' <"$work/fast.json" | sed -n 's/"name":"\([^"]*\)","loss":\([-0-9.e]*\),"loss_error":\([-0-9.e]*\),.*"ms":\([0-9.e-]*\),.*"within":\([a-z]*\),"refused":[a-z]*,"chosen":\([a-z]*\).*/\2 \3 \4 \5 \6/p' >"$work/points"
awk -v bound="$(sed -n 's/.*"max_loss":\([0-9.e-]*\).*/\1/p' "$work/fast.json")" '
    { loss = $1 > 0 ? $1 : 0; inside = loss + $2 <= bound }
    inside != ($4 == "true") { bad = 1 }
    $5 == "true" { chosen = $3; n++; if (!inside) bad = 1 }
    inside && (best == "" || $3 < best) { best = $3 }
    END { exit bad || n != 1 || NR < 3 || chosen > 1.002 * best || !(bound > 0.6418 && bound < 0.6419) }' "$work/points" ||
    { cat "$work/points"; fail "not the fastest within the loss"; }
"$command" info "$work/fast" --json >"$work/info.json"
[ "$(number bytes "$work/info.json")" -eq "$(number bytes_after "$work/fast.json")" ] || fail "info counts other bytes"
grep -q '"mlp_lowrank":[1-9]' "$work/info.json" || fail "no ranks"
"$command" logits "$work/fast" --ids 5,9 >/dev/null
has "$work/fast/README.md" "ranks only"
has "$work/fast/optimize.html" "<svg"
has "$work/fast/optimize.html" "uniform rank, 20 % removed"
# The record beside the weights draws the frontier again.
"$command" report "$work/fast" -o "$work/report.html" --rows-max 2048 >"$work/out"
for words in 'id="frontier"' 'id="compression"' "uniform rank, 20 % removed" "ranks only"; do has "$work/report.html" "$words"; done
sed 's/"ms":[0-9.e-]*/"ms":0/' "$work/fast/optimize.json" >"$work/bad.json"
cp -r "$work/fast" "$work/damaged"
mv "$work/bad.json" "$work/damaged/optimize.json"
status=0
"$command" report "$work/damaged" -o "$work/bad.html" --rows-max 2048 >"$work/out" 2>"$work/err" || status=$?
[ $status -eq 1 ] && [ ! -e "$work/bad.html" ] || fail "a damaged record was taken"
has "$work/err" '"ms" of "dense" is not above 0'
[ ! -e "$work/fast.work.partial" ] || fail "work folder left behind"

refused 2 "--max-loss 0" "$tiny" -o "$work/x" --max-loss 0
refused 2 "--max-loss much" "$tiny" -o "$work/x" --max-loss much
refused 2 "must be chat, prompt or batch=N" "$tiny" -o "$work/x" --workload batch=0
refused 2 "--verify is -1" "$tiny" -o "$work/x" --verify -1
refused 2 "no-such-chip" "$tiny" -o "$work/x" --for no-such-chip
refused 2 "-o DIR is needed" "$tiny"
refused 1 "is compressed already" "$work/fast" -o "$work/x" --calib "$tiny/calib.txt" $few
[ ! -e "$work/x" ] || fail "something was written"
echo "optimize: ok"
