#!/bin/sh
# compress --budget-bytes: never further from the dense model than bits or ranks alone; to the same bytes after a kill.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
few="--calib-tokens 256 --heldout 128 --ctx 64 --threads 1"

fail() { echo "FAILED: $1"; exit 1; }
has() { grep -qF -- "$2" "$1" || { cat "$1"; fail "\"$2\" not in output"; }; }
number() { sed -n "s/.*\"$1\":\([0-9.e-]*\).*/\1/p" "$2"; }

# More bytes: the answer written loses no more than any other, by the figures printed.
"$command" compress "$tiny" -o "$work/high" --budget-bytes 6400000 $few --json >"$work/high.json" 2>"$work/err"
[ "$(number bytes_after "$work/high.json")" -le 6400000 ] || fail "over the budget"
tr '{' '\n' <"$work/high.json" | sed -n 's/.*"possible":true.*"kl":\([0-9.e-]*\).*/\1/p' >"$work/kls"
[ "$(wc -l <"$work/kls")" -eq 3 ] || { cat "$work/high.json"; fail "not three answers"; }
tr '{' '\n' <"$work/high.json" | sed -n 's/.*"chosen":true.*"kl":\([0-9.e-]*\).*/\1/p' >"$work/kl"
awk -v chosen="$(cat "$work/kl")" '$1 < chosen { exit 1 }' "$work/kls" || fail "another answer is closer: $(cat "$work/kl") of $(cat "$work/kls")"

# Killed in the middle, then resumed.
"$command" compress "$tiny" -o "$work/low" --budget-bytes 3100000 $few >/dev/null 2>&1
"$command" compress "$tiny" -o "$work/again" --budget-bytes 3100000 $few >/dev/null 2>&1 &
pid=$!
tries=0
while [ ! -e "$work/again.work.partial/layers.partial/survey" ] && kill -0 $pid 2>/dev/null && [ $tries -lt 600 ]; do sleep 0.05; tries=$((tries + 1)); done
kill -9 $pid 2>/dev/null || true
wait $pid 2>/dev/null || true
[ ! -e "$work/again" ] || fail "it was done before it could be killed"
"$command" compress "$tiny" -o "$work/again" --budget-bytes 3100000 $few --resume >/dev/null 2>&1
cmp "$work/low/model.safetensors" "$work/again/model.safetensors" || fail "other bytes after a kill"

echo "budget: ok"
