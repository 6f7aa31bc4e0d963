#!/bin/sh
# What hostile campaigns found once, each with the test that keeps it from coming back. Those without a name are here.
#
#   resumed with another text or other weights, the old ones came out      work_folders, and here (an output of a killed run)
#   rope_theta, rms_norm_eps, teacher or kernel set changed and resumed    work_folders
#   a failed or second run deletes the work of another                     work_folders
#   folders of others deleted or replaced; the source model deleted        work_folders
#   stray files in the output after kill and resume                        long/kills; faults_kill, faults_random
#   files or folders not on disk before they take their place              faults_sync
#   edited ranks, refit, state files: signals, other results               work_folders; fuzz_work_files, fuzz_recover_state
#   plan --cache adds to any text file                                     test_plan_planner, and here
#   names of machines as code in emitted Python                            test_emit_source
#   one failed allocation: signals in plan, broken source of emit          faults_sample, faults_fail
#   exit 0 with a result that could not be written                         output_errors
#   an output that is a mount point fails at the end only                  here
#   headers and configurations of megabytes take gigabytes                 test_base_json, and here
#   names that are not UTF-8 make JSON invalid                             test_base_json, and here
#   an error in recovery.svg loses the state                               faults_fail (case recover)
#   a FIFO as config.json waits forever                                    test_base_file, and here
#   numbers of 63 bits, and others that make no sense                      bad_input, and here
#   minutes without a word; 1,024 threads on two CPUs                      here
#   SIGTERM: how to go on; a second signal; SIGPIPE                        work_folders, signals, and here
#   num_hidden_layers below the layers of the file                         test_model_open
#   an untrained checkpoint stands in the output meanwhile                 work_folders
#   assertions off in the build with sanitizers                            scripts/test (asserts_are_on)
#   libraries that loop or crash without address space                     limits
#   files outside of -o and --work                                         here
. "$2/tests/lib/cli.sh"
big=9223372036854775807
# ends CODE TEXT ARGS…: within 30 s, the text on stderr
ends() {
    want=$1 text=$2 status=0
    shift 2
    timeout 30 "$command" "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -eq "$want" ] || { cat "$work/err"; fail "exit $status instead of $want: $*"; }
    [ -z "$text" ] || grep -qF -- "$text" "$work/err" || { cat "$work/err"; fail "\"$text\" not said: $*"; }
}

# Numbers.
ends 0 "context is full" run "$tiny" -p x -n $big --ctx 16 --device cpu
ends 0 "1 generated" run "$tiny" -p x -n 1 -t 1024 --device cpu
ends 2 "--batch" recover "$tiny" -o "$work/x" --text "$tiny/calib.txt" --batch $big
ends 2 "--heldout" compress "$tiny" -o "$work/x" --ratio 0.2 --heldout $big
ends 2 "--heldout" compress "$tiny" -o "$work/x" --ratio 0.2 --heldout -7
ends 2 "--tile" compress "$tiny" -o "$work/x" --ratio 0.2 --tile $big
ends 2 "--cap" compress "$tiny" -o "$work/x" --ratio 0.2 --cap -1
ends 2 "--prompt" predict llama-3.2-1b --target trn1 --prompt $big
ends 2 "--ratio" report "$tiny" -o "$work/x" --ratio 9
ends 2 "--shape" simulate --target trn1 --kernel xuv --shape 0,0,0,0
ends 2 "--ctx" eval "$tiny" --text "$tiny/calib.txt" --ctx -1
ends 2 "--ctx" run "$tiny" -p x -n 1 --ctx -1
ends 2 "--explore" recover "$tiny" -o "$work/x" --text "$tiny/calib.txt" --explore -1
for tile in -1 0 $big; do
    ends 2 "--tile" predict llama-3.2-1b --target trn1 --ratio 0.2 --tile $tile
    ends 2 "--tile" synth llama-3.2-1b --layers 1 --ratio 0.2 --tile $tile -o "$work/x"
done
# No count is below zero, whichever command it is for.
for verb in $("$command" --help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p'); do
    for option in $("$command" $verb --help | sed -n 's/^ *\(-[a-z], \)\?\(--[a-z-]*\) [NMBT]  .*/\2/p' | grep -v -x -e --seed -e --temp -e --target -e --seconds -e --minutes); do
        ends 2 "$option" $verb "$option" -1
        grep -q "0 or more" "$work/err" || { cat "$work/err"; fail "$verb $option -1"; }
    done
done
ends 0 "" plan --target trn1 --op mlp --shape 100000,2048,512,8192
[ ! -e "$work/x" ] || fail "an output in spite of the error"

# Files: a FIFO, megabytes of nested lists in little memory, names that are no text, files of others.
mkdir "$work/fifo" "$work/large"
mkfifo "$work/fifo/config.json"
ends 1 "not a regular file" info "$work/fifo"
cp "$tiny/model.safetensors" "$work/large/"
{ printf '{"a":[0'; yes ,0 | tr -d '\n' | head -c 30000000; printf ']}'; } >"$work/large/config.json"
(ulimit -v 1000000 && ends 1 "config.json" info "$work/large")
cp "$tiny/config.json" "$work/large/"
{ printf '\000\303\311\001\0\0\0\0{"a":[0'; yes ,0 | tr -d '\n' | head -c 29999990; printf '] }'; } >"$work/large/model.safetensors" # 30,000,000 bytes
(ulimit -v 1000000 && ends 1 "model.safetensors" info "$work/large")
odd=$work/$(printf 'a\377"b')
cp -r "$tiny" "$odd"
"$command" info "$odd" --json >"$work/json"
iconv -f UTF-8 -t UTF-8 "$work/json" >/dev/null || fail "JSON that is not UTF-8"
printf 'Some notes,\nand more\n' >"$work/notes"
cp "$work/notes" "$work/want"
ends 1 "not a plan cache" plan --target trn1 --op xw --shape 128,128,128 --cache "$work/notes"
cmp "$work/notes" "$work/want" || fail "a file of others was changed"
mkdir "$work/disk"
if mount -t tmpfs -o size=1m tmpfs "$work/disk" 2>/dev/null; then
    ends 2 "mount point" compress "$tiny" -o "$work/disk" --ratio 0.2
    umount "$work/disk"
fi

# A whole output of a run that was killed before the last rename: of the same options, but of another text.
compress() { "$command" compress "$1" -o "$work/$2" --ratio 0.3 --calib "$work/$3" --calib-tokens 64 --heldout 0 --ctx 64 --alloc uniform \
    --recover none --resume >/dev/null 2>"$work/err" || { cat "$work/err"; fail "compress"; }; }
head -c 4000 "$tiny/calib.txt" >"$work/A"
tail -c 4000 "$tiny/calib.txt" >"$work/B"
compress "$tiny" a A
compress "$tiny" b B
cp -r "$work/a" "$work/s.partial"
: >"$work/s.partial/.neuronmlp-work"
compress "$tiny" s B
cmp "$work/b/model.safetensors" "$work/s/model.safetensors" || fail "weights of another text"

# The same where another byte of the weights is another model.
cp -r "$tiny" "$work/other"
printf '\011' | dd of="$work/other/model.safetensors" bs=1 seek=$(($(wc -c <"$tiny/model.safetensors") - 3)) conv=notrunc 2>/dev/null
compress "$work/other" o B
cp -r "$work/b" "$work/p.partial"
: >"$work/p.partial/.neuronmlp-work"
compress "$work/other" p B
cmp "$work/o/model.safetensors" "$work/p/model.safetensors" || fail "weights of another model"
cmp -s "$work/b/model.safetensors" "$work/o/model.safetensors" && fail "a model of other weights has the same ones"

# Nothing is written but what was asked for: not into the folder one stands in, not at home, not beside the model, no temporary file.
mkdir "$work/home" "$work/here" "$work/tmp" "$work/asked"
cp -r "$tiny" "$work/model"
few="--calib $work/A --calib-tokens 64 --heldout 32 --ctx 64"
find "$work/model" "$work/A" | sort | xargs ls -ld --time-style=full-iso >"$work/before"
for words in "info $work/model" "tokenize $work/model -p x" "run $work/model -p x -n 2" "logits $work/model --ids 1" "eval $work/model --text $work/A" \
    "compress $work/model -o $work/asked/c --ratio 0.3 --alloc uniform --recover none --work $work/asked/w $few" \
    "quantize $work/model -o $work/asked/q --format q8 $few" "expand $work/asked/c -o $work/asked/d" "export $work/model -o $work/asked/e.gguf" \
    "import $work/asked/e.gguf -o $work/asked/i" "predict $work/model --target trn1 --prompt 16 --generate 2" \
    "recover $work/asked/c -o $work/asked/r --text $work/A --steps 1 --batch 1 --ctx 16 --heldout 1" \
    "plan --target trn1 --op xw --shape 128,128,128" "simulate --target trn1 --kernel xw-tiled --shape 128,128,128" \
    "emit --target trn1 --kernel xw-tiled --shape 128,128,128 -o $work/asked/k.py" "report $work/asked/c -o $work/asked/p.html --rows-max 2048" doctor; do
    # shellcheck disable=SC2086
    (cd "$work/here" && HOME=$work/home TMPDIR=$work/tmp XDG_CACHE_HOME=$work/home/cache exec "$command" $words) >/dev/null 2>"$work/err" ||
        { cat "$work/err"; fail "$words"; }
    left=$(find "$work/home" "$work/here" "$work/tmp" -mindepth 1)
    [ -z "$left" ] || fail "$words leaves $left"
done
find "$work/model" "$work/A" | sort | xargs ls -ld --time-style=full-iso | cmp - "$work/before" || fail "a model that was only read has changed"
[ "$(ls -A "$work/asked" | tr '\n' ' ')" = "c d e.gguf i k.py p.html q r w.partial " ] || { ls -A "$work/asked"; fail "other files than those asked for"; }

# Whoever reads goes away: no message, no output of an error.
{ "$command" tokenize "$tiny" -f "$tiny/calib.txt" 2>"$work/err" || true; } | head -c 1 >/dev/null
[ ! -s "$work/err" ] || { cat "$work/err"; fail "words about a closed pipe"; }
echo ok
