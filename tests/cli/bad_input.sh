#!/bin/sh
# Broken input: exit 1, one clear line that names the culprit, nothing written.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny

fresh() {
    rm -rf "$work/m"
    mkdir "$work/m"
    cp "$tiny"/config.json "$tiny"/tokenizer.json "$tiny"/model.safetensors "$work/m/"
}

# refused NAME PART… -- COMMAND…: exit 1, every part in the message, at most two lines (message and hint)
refused() {
    name=$1
    shift
    parts=""
    while [ "$1" != "--" ]; do
        parts="$parts$1
"
        shift
    done
    shift
    status=0
    "$command" "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -eq 1 ] || { echo "FAILED $name: exit $status"; cat "$work/err"; exit 1; }
    [ "$(wc -l <"$work/err")" -le 2 ] || { echo "FAILED $name: more than a line and a hint"; cat "$work/err"; exit 1; }
    printf '%s' "$parts" | while IFS= read -r part; do
        grep -qF -- "$part" "$work/err" || { echo "FAILED $name: \"$part\" not in: $(cat "$work/err")"; exit 1; }
    done
}

refused "no directory" "/no/such" "config.json" -- info /no/such
fresh; rm "$work/m/model.safetensors"
refused "no weights" "model.safetensors" -- info "$work/m"
fresh; : >"$work/m/model.safetensors"
refused "empty weights" "model.safetensors" "empty" -- run "$work/m" -p x
fresh; head -c 100000 "$tiny/model.safetensors" >"$work/m/model.safetensors"
refused "truncated weights" "model.safetensors" "truncated" -- run "$work/m" -p x
fresh; printf '\377\377\377\000\000\000\000\000{}' >"$work/m/model.safetensors"
refused "header past the end" "header length 16777215" -- run "$work/m" -p x
fresh; echo '{"weight_map":{"a":"model-00002-of-00002.safetensors"}}' >"$work/m/model.safetensors.index.json"
refused "absent shard" "model-00002-of-00002.safetensors" "absent" -- info "$work/m"
fresh; sed -i 's/"hidden_size": 256/"hidden_size": 512/' "$work/m/config.json"
refused "wrong shape" "tensor" "has shape" "expected" -- info "$work/m"
fresh; sed -i 's/Qwen3ForCausalLM/MambaForCausalLM/' "$work/m/config.json"
refused "unknown architecture" "MambaForCausalLM" "LlamaForCausalLM" -- info "$work/m"
fresh; sed -i 's/{/{,/' "$work/m/config.json"
refused "invalid JSON" "config.json" "line 1" -- info "$work/m"
fresh; head -c 300000 /dev/zero | tr '\0' '[' >"$work/m/config.json"
refused "deep nesting" "config.json" "invalid JSON" -- info "$work/m"
fresh; sed -i 's/"hidden_size": 256/"hidden_size": 1e999/' "$work/m/config.json"
refused "huge number" "hidden_size" -- info "$work/m"
fresh; printf '\377\177' | dd of="$work/m/model.safetensors" bs=1 seek=9000000 conv=notrunc 2>/dev/null
refused "NaN weight" "tensor model." "NaN" -- run "$work/m" -p x
fresh; rm "$work/m/tokenizer.json"
refused "no tokenizer" "tokenizer.json" -- run "$work/m" -p x
fresh; sed -i 's/"type": *"BPE"/"type":"Unigram"/' "$work/m/tokenizer.json"
refused "unknown tokenizer" "tokenizer.json" "Unigram" -- tokenize "$work/m" -p x
refused "token id past the vocabulary" "8192" -- logits "$tiny" --ids 1,8192
refused "negative token id" "-5" -- logits "$tiny" --ids 1,-5
refused "no list" "1;2" -- logits "$tiny" --ids "1;2"
refused "position past the ids" "--positions" -- logits "$tiny" --ids 1,2 --positions 2
head -c 40000 "$tiny/calib.txt" >"$work/long.txt"
refused "prompt longer than the context" "prompt has" "512" -- run "$tiny" -f "$work/long.txt"
refused "context beyond the model" "9999" "512" -- run "$tiny" -p x --ctx 9999
refused "sampling value" "--top-p" -- run "$tiny" -p x --top-p 2
refused "unknown isa" "sse9" "ref" -- run "$tiny" -p x --isa sse9
refused "unwritable output" "/proc/no/x" -- expand "$tiny" -o /proc/no/x
refused "unwritable output" "/proc/no/x" -- synth llama-3.2-1b --layers 1 -o /proc/no/x
echo keep >"$work/file"
refused "output is a file" "$work/file" "not a directory" -- expand "$tiny" -o "$work/file"
grep -q keep "$work/file"
refused "ratio" "--ratio" -- synth llama-3.2-1b --layers 1 --ratio 1.5 -o "$work/x"
[ ! -e "$work/x" ] && [ ! -e "$work/x.partial" ]
echo "all refused as they should be"
