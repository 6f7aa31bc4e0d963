#!/bin/sh
# Broken input: one clear line that names the culprit, nothing written. Exit 1 where a file or the machine is at fault, 2 where the words are:
# unknown, missing, or values that could never be right.
. "$2/tests/lib/cli.sh"

fresh() {
    rm -rf "$work/m"
    mkdir "$work/m"
    cp "$tiny"/config.json "$tiny"/tokenizer.json "$tiny"/model.safetensors "$work/m/"
}

# refused NAME PART… -- COMMAND…: exit 1, every part in the message, two lines at most: "neuronmlp COMMAND: message", "hint: what to do"
refused() { expect 1 "$@"; }
# misused: the same with exit 2
misused() { expect 2 "$@"; }
expect() {
    wanted=$1
    name=$2
    shift
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
    [ "$status" -eq "$wanted" ] || { echo "FAILED $name: exit $status"; cat "$work/err"; exit 1; }
    [ ! -s "$work/out" ] || { echo "FAILED $name: wrote to stdout"; cat "$work/out"; exit 1; }
    head -n 1 "$work/err" | grep -q "^neuronmlp\( $1\)\?: [^ ]" || { echo "FAILED $name: $(cat "$work/err")"; exit 1; }
    sed 1d "$work/err" | grep -vq "^hint: " && { echo "FAILED $name: $(cat "$work/err")"; exit 1; }
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
fresh; rm "$work/m/model.safetensors"; echo '{"weight_map":{"a":"model-00002-of-00002.safetensors"}}' >"$work/m/model.safetensors.index.json"
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
misused "token id past the vocabulary" "8192" -- logits "$tiny" --ids 1,8192
misused "negative token id" "-5" -- logits "$tiny" --ids 1,-5
misused "no list" "1;2" -- logits "$tiny" --ids "1;2"
misused "position past the ids" "--positions" -- logits "$tiny" --ids 1,2 --positions 2
head -c 40000 "$tiny/calib.txt" >"$work/long.txt"
refused "prompt longer than the context" "prompt has" "512" -- run "$tiny" -f "$work/long.txt"
refused "context beyond the model" "9999" "512" -- run "$tiny" -p x --ctx 9999
misused "sampling value" "--top-p" -- run "$tiny" -p x --top-p 2
misused "unknown isa" "sse9" "ref" -- run "$tiny" -p x --isa sse9
refused "unwritable output" "/proc/no/x" -- expand "$tiny" -o /proc/no/x
refused "unwritable output" "/proc/no/x" -- synth llama-3.2-1b --layers 1 -o /proc/no/x
echo keep >"$work/file"
refused "output is a file" "$work/file" "not a directory" -- expand "$tiny" -o "$work/file"
grep -q keep "$work/file"
misused "ratio" "--ratio" -- synth llama-3.2-1b --layers 1 --ratio 1.5 -o "$work/x"
misused "no layers" "--layers" -- synth llama-3.2-1b --layers 0 -o "$work/x"
misused "steps below one" "--train-steps" -- compress "$tiny" -o "$work/x" --ratio 0.3 --train-steps -1
refused "a machine file that is not there" "no.machine" -- plan --target "$work/no.machine" --op xw --shape 128,128,128
[ ! -e "$work/x" ] && [ ! -e "$work/x.partial" ]
# Words: unknown ones with what was probably meant, missing ones, wrong ones; the same for every command.
misused "unknown command" "compres" 'did you mean "compress"' "neuronmlp --help" -- compres
misused "unknown command far from all" "xyzzy" -- xyzzy
misused "unknown option instead of a command" "--frobnicate" -- --frobnicate
for verb in $("$command" --help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p'); do
    misused "$verb: unknown option" "--no-such-option" "neuronmlp $verb --help" -- "$verb" --no-such-option
    misused "$verb: misspelt option" "--jsno" "did you mean --json?" -- "$verb" --jsno
    misused "$verb: unknown letter" "-Z" -- "$verb" -Z
    misused "$verb: value missing" "--threads" "N" -- "$verb" --threads
    misused "$verb: no number" "--threads" "\"many\" is not a whole number" -- "$verb" --threads many
    misused "$verb: number out of range" "--threads" -- "$verb" --threads 99999999999999999999
    misused "$verb: flag with a value" "--json takes no value" -- "$verb" --json=1
    misused "$verb: too many arguments" "unexpected argument" -- "$verb" 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17
done
# What a command cannot do without.
for verb in info tokenize logits run synth compress quantize recover expand eval predict bench; do
    misused "$verb: no argument" "an argument is missing" "neuronmlp $verb" -- "$verb"
done
for verb in plan simulate emit; do misused "$verb: nothing said" "--target" "--shape" "needed" -- "$verb"; done
misused "not a finite number" "--temp" "nan" -- run "$tiny" -p x --temp nan
misused "a fraction where a whole number goes" "-n" "1.5" "whole" -- run "$tiny" -p x -n 1.5
misused "ambiguous option" "--to" "--top-k" "--top-p" -- run "$tiny" --to 3
misused "unknown device" "--device" "tpu" "cpu" -- run "$tiny" -p x --device tpu
misused "unknown precision" "--precision" "int4" "bf16" -- run "$tiny" -p x --precision int4
misused "unknown preset" "gpt-5" "llama-3.2-1b" -- synth gpt-5 -o "$work/x"
misused "unknown kernel" "yw" "xw-opt" -- simulate --target trn1 --kernel yw --shape 1,1,1
misused "unknown operation" "conv" "xuv" -- plan --target trn1 --op conv --shape 1,1,1
misused "unknown number type" "int4" "bf16" -- plan --target trn1 --op xw --shape 1,1,1 --dtype int4
misused "shape of the wrong length" "--shape" "S,H,R,O" -- plan --target trn1 --op xuv --shape 1,1,1
misused "unknown benchmark" "neurons" -- bench neurons
misused "unknown task" "trivia" "piqa" -- eval "$tiny" --task trivia --data "$tiny/calib.txt"
misused "no machine file" "trn9" "trn1" -- plan --target trn9 --op xw --shape 1,1,1
# Options that would be ignored beside the others, one line each: the option, then the words.
while read -r option words; do
    # shellcheck disable=SC2086
    misused "$words" "--$option" -- $(echo "$words" | sed "s|TINY|$tiny|g; s|OUT|$work/x|g")
done <<'EOF'
buckets emit --target trn1 --kernel xw-opt --shape 128,128,128 --buckets 1
tp emit --target trn1 --kernel xw-opt --shape 128,128,128 --tp 2
lnc emit --target trn1 --kernel xw-opt --shape 128,128,128 --lnc 2
fuse emit --target trn1 --kernel xw-opt --shape 128,128,128 --fuse all
cache emit --target trn1 --kernel xw-opt --shape 128,128,128 --cache OUT
tiling emit --target trn1 --model TINY -o OUT --tiling a=1
seed simulate --target trn1 --kernel xw-opt --shape 128,128,128 --seed 1
check simulate --target trn1 --kernel xw-opt --shape 128,128,128 --program --check
trace simulate --target trn1 --kernel xw-opt --shape 128,128,128 --program --trace OUT.svg
json simulate --target trn1 --kernel xw-opt --shape 128,128,128 --program --json
ranks plan --target trn1 --op xuv --shape 128,128,64,128 --ranks gate=32
tile predict llama-3.2-1b --target trn1 --tile 64
batch predict --cluster nodes=8,latency_us=30,gbit=10,read_gbs=100 --batch 2
cache predict --cluster nodes=8,latency_us=30,gbit=10,read_gbs=100 --cache OUT
tile synth llama-3.2-1b --layers 1 --tile 64 -o OUT
no-bos run TINY --ids 1,2 --no-bos
no-special run TINY --ids 1,2 --no-special
no-bos run TINY -p x --chat --no-bos
system run TINY -p x --system x
split run TINY -p x --split all
peer-timeout run TINY -p x --peer-timeout -1
peer-timeout eval TINY --text TINY/calib.txt --peer-timeout -1
peer-timeout compress TINY -o OUT --ratio 0.2 --peer-timeout 0
peer-timeout recover TINY -o OUT --text TINY/calib.txt --peer-timeout -0.5
peer-timeout serve TINY --port 0 --peer-timeout -1
peer-timeout eval TINY TINY/calib.txt --kl TINY --peer-timeout 5
no-bos tokenize TINY --decode 1 --no-bos
no-special tokenize TINY --decode 1 --no-special
no-bos eval TINY --text TINY/calib.txt --bos --no-bos
no-bos eval TINY --text TINY/calib.txt --rolling --no-bos
format eval TINY --text TINY/calib.txt --format csv
limit eval TINY --text TINY/calib.txt --limit 3
preset eval TINY --task piqa --data OUT --preset ptb
rolling eval TINY --task piqa --data OUT --rolling
special eval TINY --task piqa --data OUT --special
data-dir eval TINY --task piqa --data OUT --data-dir OUT
data eval TINY --suite paper --data-dir OUT --data OUT
stride eval TINY --suite paper --data-dir OUT --stride 8
preset eval TINY TINY/calib.txt --kl TINY --preset ptb
format eval TINY TINY/calib.txt --kl TINY --format csv
train-steps compress TINY -o OUT --ratio 0.2 --train-steps 5
train-text compress TINY -o OUT --ratio 0.2 --train-text TINY/calib.txt
rounds compress TINY -o OUT --ratio 0.2 --alloc uniform --rounds 2
head quantize TINY -o OUT --budget-bytes 4000000 --head q4
group quantize TINY -o OUT --budget-bytes 4000000 --group 64
group quantize TINY -o OUT --format q8 --group 64
match recover TINY -o OUT --text TINY/calib.txt --match 0.5
explore recover TINY -o OUT --text TINY/calib.txt --train mlp --explore 0.5
lora-rank recover TINY -o OUT --text TINY/calib.txt --lora-rank 4
ratio report -o OUT --shape 128,128,64,128 --ratio 0.3
preset report -o OUT --shape 128,128,64,128 --preset qwen3-1.7b
shape bench model TINY --shape 64,128
rows bench peak --rows 1
rounds bench mlp --rounds 3
target bench mlp --target trn2
svg bench cluster --svg OUT
model bench neuron --model llama-3.2-1b -o TINY
model bench neuron-mlp TINY --model llama-3.2-1b -o TINY
out bench peak --out TINY
compare-name serve TINY --port 0 --compare-name x
EOF
[ ! -e "$work/x" ] && [ ! -e "$work/x.partial" ] || fail "an output in spite of an error"
refused "no such text" "/no/such" -- eval "$tiny" --text /no/such
refused "empty name" "config.json" -- info ""
refused "a file where a model goes" "calib.txt" -- info "$tiny/calib.txt"
refused "no calibration text" "calib.txt" "--calib" -- compress "$work/m" -o "$work/x" --ratio 0.2
[ ! -e "$work/x" ] && [ ! -e "$work/x.partial" ]
echo "all refused as they should be"
