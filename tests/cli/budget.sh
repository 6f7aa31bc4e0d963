#!/bin/sh
# compress --budget-bytes as typed: within the bytes, with ranks where bits do not reach; wrong words are refused.
. "$2/tests/lib/cli.sh"
few="--calib-tokens 256 --heldout 128 --ctx 64 --threads 1"

refused() { # refused CODE TEXT ARGS…
    want=$1 text=$2 status=0
    shift 2
    "$command" compress "$tiny" -o "$work/x" "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -eq "$want" ] || { cat "$work/err"; fail "exit $status instead of $want: $*"; }
    has "$work/err" "$text"
    [ ! -e "$work/x" ] && [ ! -e "$work/x.work.partial" ] || fail "something was written: $*"
}

# Fewer bytes than 4 bits for all weights: ranks come in, and the checkpoint is what it says.
"$command" compress "$tiny" -o "$work/low" --budget-bytes 3100000 $few --json >"$work/low.json" 2>"$work/err"
[ "$(number bytes_after "$work/low.json")" -le 3100000 ] || fail "over the budget"
has "$work/low.json" '"chosen":"ranks and bits"'
has "$work/low.json" '{"name":"bits alone","possible":false'
"$command" info "$work/low" --json >"$work/info.json"
[ "$(number bytes "$work/info.json")" -eq "$(number bytes_after "$work/low.json")" ] || fail "info counts other bytes"
grep -q '"mlp_lowrank":[1-9]' "$work/info.json" || fail "no ranks"
"$command" logits "$work/low" --ids 5,9 >/dev/null
[ ! -e "$work/low.work.partial" ] || fail "work folder left behind"

# Time on this CPU: MLPs within it, other matrices as they were, and the other two answers beside it.
refused 2 "nothing to do" --budget-ms 100000 $few
dense=$(sed -n 's/.*the dense MLPs take \([0-9.e-]*\) ms.*/\1/p' "$work/err")
budget=$(awk "BEGIN { print 0.3 * $dense }")
"$command" compress "$tiny" -o "$work/timed" --budget-ms "$budget" $few --json >"$work/timed.json" 2>"$work/err" || { cat "$work/err"; fail "budget of time"; }
awk "BEGIN { exit !($(number time_after_ms "$work/timed.json") <= $budget && $(number time_before_ms "$work/timed.json") > $budget) }" || fail "over the time"
has "$work/timed.json" '"q_proj":{"format":"bf16"}'
has "$work/timed.json" '"head":"bf16"'
grep -q '"up_proj":{"rank":[0-9]*,"format":"q[48]' "$work/timed.json" || fail "no bits"
[ "$(grep -o '"least_ms"' "$work/timed.json" | wc -l)" -eq 3 ] || fail "not three answers"
"$command" logits "$work/timed" --ids 5,9 >/dev/null
refused 1 "the smallest mix of ranks and bits takes" --budget-ms 0.000001 $few
refused 1 "the smallest mix of ranks and bits takes" --budget-bytes 100000 $few
refused 2 "nothing to do" --budget-bytes 100000000 $few
refused 2 "exclude each other" --budget-bytes 4000000 --ratio 0.2
refused 2 "must be 0 or more" --budget-bytes -5
refused 2 "needs adaptive ranks" --budget-bytes 4000000 --alloc uniform
echo "budget: ok"
