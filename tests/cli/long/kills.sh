#!/bin/sh
# compress killed at arbitrary times, again and again, over an output that exists: a reader always sees a whole model, and what comes
# out in the end has the bytes of an undisturbed run and no other files.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
fail() { echo "FAILED: $1"; exit 1; }
compress() { exec "$command" compress "$tiny" -o "$1" --ratio "$2" --calib-tokens 512 --heldout 128 --ctx 64 --rounds 0 --resume; }

began=$(date +%s%N)
(compress "$work/want" 0.3) >/dev/null 2>&1 || fail "an undisturbed run"
whole_ms=$((($(date +%s%N) - began) / 1000000))
(compress "$work/old" 0.4) >/dev/null 2>&1 || fail "the older output"
old=$(cksum <"$work/old/model.safetensors")
want=$(cksum <"$work/want/model.safetensors")
cp -r "$work/old" "$work/out"
kills=0
finished=0
for share in 5 95 20 80 35 65 50 98 10 90 25 75 99 60 40 100 97 96; do
    compress "$work/out" 0.3 >/dev/null 2>"$work/err" &
    pid=$!
    sleep "$(awk "BEGIN { print $whole_ms * $share / 1e5 }")"
    kill -9 "$pid" 2>/dev/null && kills=$((kills + 1)) || finished=$((finished + 1))
    wait "$pid" 2>/dev/null || true
    now=$(cksum <"$work/out/model.safetensors") || fail "no model after a kill at $share %"
    [ "$now" = "$old" ] || [ "$now" = "$want" ] || fail "half a model after a kill at $share %"
    "$command" info "$work/out" >/dev/null || fail "a model that does not open after a kill at $share %"
done
(compress "$work/out" 0.3) >/dev/null 2>"$work/err" || { cat "$work/err"; fail "the last run"; }
[ "$(cksum <"$work/out/model.safetensors")" = "$want" ] || fail "killed and resumed, other bytes came out"
[ "$(ls -A "$work/out")" = "$(ls -A "$work/want")" ] || fail "other files in the output"
[ "$(ls -A "$work" | sort | tr '\n' ' ')" = "err old out want " ] || { ls -A "$work"; fail "folders left behind"; }
echo "ok: $kills kills, $finished runs ended before theirs"
