#!/bin/sh
# synth in the shape of a real model, dense and factorised; info, run and expand on it. Writes two gigabytes below $TMPDIR.
set -eu
command=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $1" >&2
    exit 1
}
contains() { # text, part, name
    case "$1" in *"$2"*) ;; *) fail "$3: \"$2\" not in: $1" ;; esac
}

"$command" synth llama-3.2-1b -o "$work/s" --layers 1 --ratio 0.5 --json | grep -q '"params":' || fail synth
contains "$("$command" info "$work/s" --json)" '"ranks":[[768,768,768]]' "synth ranks"
"$command" run "$work/s" -p hello -n 2 --json | grep -q '"generated_tokens":2' || fail "run synth"
"$command" synth llama-3.2-1b -o "$work/s2" --layers 1 --ratio 0.5 --threads 1 >/dev/null
cmp -s "$work/s/model.safetensors" "$work/s2/model.safetensors" || fail "synth depends on the thread count"
"$command" expand "$work/s" -o "$work/dense" >/dev/null
contains "$("$command" info "$work/dense" --json)" '"mlp_lowrank":0' "expanded"
a=$("$command" logits "$work/s" --ids 5,6,7 --json | sed 's/.*"argmax":/"argmax":/')
b=$("$command" logits "$work/dense" --ids 5,6,7 --json | sed 's/.*"argmax":/"argmax":/')
[ "$a" = "$b" ] || fail "expand changed the argmax"

echo "synth: ok"
