#!/bin/sh
# compress --recover train: training after the refit changes the factors, not the shapes.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
few="--calib-tokens 512 --heldout 256 --ctx 128"

fail() { echo "FAILED: $1"; exit 1; }
# has FILE TEXT: the text is there
has() { grep -qF -- "$2" "$1" || { cat "$1"; fail "\"$2\" not in output"; }; }

head -c 60000 "$tiny/calib.txt" >"$work/train.txt"
"$command" compress "$tiny" -o "$work/r" --ratio 0.2 --alloc uniform --recover train --train-steps 1 --train-text "$work/train.txt" $few \
    >/dev/null 2>"$work/err"
has "$work/err" "training: held-out perplexity"
[ -e "$work/r/recovery.csv" ] || fail "no log of the training"
"$command" logits "$work/r" --ids 5,9 >/dev/null
echo ok
