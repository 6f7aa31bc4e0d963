#!/bin/sh
# export and import as typed: a model goes there and back with its tokenizer, and what cannot be read is refused in one line.
set -eu
command=$1
root=$2
tiny=$root/models/tiny
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; exit 1; }

"$command" export "$tiny" -o "$work/tiny.gguf" >/dev/null
"$command" import "$work/tiny.gguf" -o "$work/back" --json >"$work/json"
grep -q '"params":6' "$work/json" || fail "import says $(cat "$work/json")"
text="Once upon a time, there were 123 ships; don't ask."
"$command" tokenize "$tiny" -p "$text" >"$work/a"
"$command" tokenize "$work/back" -p "$text" >"$work/b"
cmp -s "$work/a" "$work/b" || fail "the tokenizer changed: $(cat "$work/a" "$work/b")"
"$command" logits "$tiny" --ids 5,6,7,8 >"$work/a"
"$command" logits "$work/back" --ids 5,6,7,8 >"$work/b"
cmp -s "$work/a" "$work/b" || fail "logits changed in bf16"

# Q4_0 is imported without being widened, and exported again to the same bytes.
"$command" export "$tiny" -o "$work/q4.gguf" --type q4_0 >/dev/null
"$command" import "$work/q4.gguf" -o "$work/q4" >/dev/null
"$command" info "$work/q4" | grep -q 'Q4$' || fail "no Q4 in $("$command" info "$work/q4")"
"$command" export "$work/q4" -o "$work/q4b.gguf" --type q4_0 >/dev/null
"$command" import "$work/q4b.gguf" -o "$work/q4b" >/dev/null
cmp -s "$work/q4/model.safetensors" "$work/q4b/model.safetensors" || fail "Q4_0 changed on its way"
"$command" run "$work/q4" -p "Once" -n 4 --temp 0 >/dev/null || fail "Q4_0 does not run"

# refused NAME PART -- WORDS: one line and a hint at most, which says PART; nothing is left behind.
refused() {
    name=$1 part=$2
    shift 3
    "$command" "$@" >"$work/out" 2>"$work/err" && fail "$name was taken"
    grep -q "$part" "$work/err" || fail "$name: $(cat "$work/err")"
    [ "$(grep -c '^neuronmlp' "$work/err")" = 1 ] || fail "$name: not one line: $(cat "$work/err")"
    [ ! -e "$work/no" ] || fail "$name left output"
}
head -c 3000 "$work/tiny.gguf" >"$work/short.gguf"
refused "a truncated file" "truncated" -- import "$work/short.gguf" -o "$work/no"
refused "a text" "no GGUF file" -- import "$root/README.md" -o "$work/no"
refused "an absent file" "absent.gguf" -- import "$work/absent.gguf" -o "$work/no"
refused "an unknown type" "q3_k" -- export "$tiny" -o "$work/no" --type q3_k
refused "an unwritable output" "/proc/no" -- export "$tiny" -o /proc/no/x.gguf

# An infinite weight has no code in Q8_0 or Q4_0; the first tensor is a matrix.
cp -r "$tiny" "$work/inf"
chmod -R u+w "$work/inf"
header=$(od -An -tu8 -N8 "$work/inf/model.safetensors")
printf '\200\177' | dd of="$work/inf/model.safetensors" bs=1 seek=$((header + 8)) conv=notrunc 2>/dev/null
refused "an infinite weight" "row 0 of tensor .* for Q8_0" -- export "$work/inf" -o "$work/no" --type q8_0
refused "an infinite weight" "row 0 of tensor .* for Q4_0" -- export "$work/inf" -o "$work/no" --type q4_0
