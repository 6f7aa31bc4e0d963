#!/bin/sh
# A result that cannot be written is a failure with a message, whichever command printed it.
set -eu
command=$1
root=$2
[ -w /dev/full ] || { echo "no /dev/full here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
fail() { echo "FAILED: $1"; exit 1; }

lost() {
    status=0
    "$command" "$@" >/dev/full 2>"$work/err" || status=$?
    [ "$status" -eq 1 ] || fail "$*: exit $status with a full output"
    grep -q "No space left\|earlier write failed" "$work/err" || { cat "$work/err"; fail "$*: no message"; }
}
head -c 2000 "$tiny/calib.txt" >"$work/text"
for json in "" --json; do
    lost info "$tiny" $json
    lost tokenize "$tiny" -p hello $json
    lost logits "$tiny" --ids 1,2 $json
    lost run "$tiny" -p hello -n 2 $json
    lost eval "$tiny" --text "$work/text" $json
    lost plan --target trn1 --op xuv --shape 128,256,64,256 $json
    lost simulate --target trn1 --kernel xuv --shape 128,256,64,256 $json
    lost predict llama-3.2-1b --target trn1 --prompt 128 --generate 2 $json
    lost expand "$tiny" -o "$work/dense" $json
    lost export "$tiny" -o "$work/gguf" $json
    lost import "$work/gguf" -o "$work/imported" $json
    lost quantize "$tiny" -o "$work/q" --format q8 --calib "$work/text" --calib-tokens 64 --heldout 0 --ctx 64 $json
    lost compress "$tiny" -o "$work/c" --ratio 0.3 --calib "$work/text" --calib-tokens 64 --heldout 0 --ctx 64 --alloc uniform --recover none $json
    lost doctor $json
done
lost emit --target trn1 --kernel xuv --shape 128,256,64,256
lost emit --target trn1 --kernel xuv --shape 128,256,64,256 --json
lost report -o "$work/page" --rows-max 2048 --json
lost --help
lost info --help
lost --version
echo ok
