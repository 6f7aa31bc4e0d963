#!/bin/sh
# Work folders of compress and recover: what is deleted, what is used again, who may use it at a time.
. "$2/tests/lib/cli.sh"
options="--ratio 0.2 --calib-tokens 512 --heldout 128 --ctx 64 --rounds 0"

# compress MODEL OUT ARGS…: must succeed; messages in $work/err
compress() {
    model=$1 out=$2
    shift 2
    "$command" compress "$model" -o "$work/$out" $options "$@" >/dev/null 2>"$work/err" || { cat "$work/err"; fail "compress $*"; }
}
# refused CODE TEXT ARGS…
refused() {
    want=$1 text=$2 status=0
    shift 2
    "$command" "$@" >/dev/null 2>"$work/err" || status=$?
    [ "$status" -eq "$want" ] || { cat "$work/err"; fail "exit $status instead of $want: $*"; }
    has "$work/err" "$text"
}
same() { cmp "$work/$1/model.safetensors" "$work/$2/model.safetensors" || fail "$3"; }

head -c 20000 "$tiny/calib.txt" >"$work/A"
tail -c 20000 "$tiny/calib.txt" >"$work/B"
compress "$tiny" a --calib "$work/A" --work "$work/W"
[ -e "$work/W.partial/layer-00000.nested" ] || fail "--work keeps no work"
compress "$tiny" b --calib "$work/B"

# Everything the same: nothing is made again, and the bytes are the same.
cp -r "$work/W.partial" "$work/kept"
compress "$tiny" again --calib "$work/A" --work "$work/W" --resume
grep -q "made again" "$work/err" && fail "work of the same job was not used"
same a again "resumed from its own work, another model came out"
[ "$(ls -A "$work/a")" = "$(ls -A "$work/again")" ] || fail "stray files in the output"

# Another text, other weights outside the middle of a tensor, another rope_theta or norm: the work is not theirs.
compress "$tiny" s --calib "$work/B" --work "$work/W" --resume
has "$work/err" "made again"
same b s "resumed with another text, weights of the old text came out"
cp -r "$tiny" "$work/m"
size=$(wc -c <"$work/m/model.safetensors")
printf '\011' | dd of="$work/m/model.safetensors" bs=1 seek=$((size - 3)) conv=notrunc 2>/dev/null
compress "$work/m" fresh --calib "$work/A"
rm -rf "$work/W.partial" && cp -r "$work/kept" "$work/W.partial"
compress "$work/m" s --calib "$work/A" --work "$work/W" --resume
has "$work/err" "made again"
same fresh s "resumed with other weights, the old ones came out"
for key in rms_norm_eps rope_theta; do
    rm -rf "$work/m" && cp -r "$tiny" "$work/m"
    sed "s/\"$key\": *[0-9.e-]*/\"$key\": 0.5/" "$tiny/config.json" >"$work/m/config.json"
    cmp -s "$tiny/config.json" "$work/m/config.json" && fail "no $key in config.json"
    rm -rf "$work/W.partial" && cp -r "$work/kept" "$work/W.partial"
    compress "$work/m" s --calib "$work/A" --work "$work/W" --resume
    has "$work/err" "made again"
done

# Other kernels of OpenBLAS: their sums have other last bits. (Where it has one set only, there is nothing to see.)
blas_core() { "$command" doctor --json | sed -n 's/.*"blas_core": *"\([^"]*\)".*/\1/p'; }
own=$(blas_core) other=$(OPENBLAS_CORETYPE=Nehalem blas_core)
if [ -n "$own" ] && [ "$own" != "$other" ]; then
    rm -rf "$work/W.partial" && cp -r "$work/kept" "$work/W.partial"
    (OPENBLAS_CORETYPE=Nehalem && export OPENBLAS_CORETYPE && compress "$tiny" s --calib "$work/A" --work "$work/W" --resume)
    has "$work/err" "made again"
fi

# Work files cut short, edited or exchanged: made again, to the same bytes.
rm -rf "$work/W.partial" && cp -r "$work/kept" "$work/W.partial"
for file in ranks layer-00001.nested layer-00002.refit; do
    [ -e "$work/W.partial/$file" ] || fail "no work file $file"
    printf '\377\377\377' | dd of="$work/W.partial/$file" bs=1 seek=40 conv=notrunc 2>/dev/null
done
head -c 100 "$work/kept/layer-00000.nested" >"$work/W.partial/layer-00000.nested"
compress "$tiny" s --calib "$work/A" --work "$work/W" --resume
has "$work/err" "are damaged"
same a s "damaged work files changed the result"

# Only one run at a time; the lock of a process that ended holds nobody up.
flock -o "$work/W.partial/.neuronmlp-work" sleep 30 &
holder=$!
while flock -n "$work/W.partial/.neuronmlp-work" true; do # until that one has it
    kill -0 "$holder" || fail "the holder of the lock ended"
    sleep 0.01
done
refused 1 "another run is using it" compress "$tiny" -o "$work/s" $options --calib "$work/A" --work "$work/W" --resume
kill "$holder"
wait "$holder" 2>/dev/null || true
compress "$tiny" s --calib "$work/A" --work "$work/W" --resume

# An output that cannot be written is refused before the work, and no error costs finished work.
refused 1 "there is no directory" compress "$tiny" -o "$work/none/s" $options --calib "$work/A" --work "$work/W" --resume
[ -e "$work/W.partial/layer-00003.nested" ] || fail "a bad -o cost the work folder"
bytes=$(wc -c <"$work/a/model.safetensors")
(ulimit -f $((bytes / 512 - 100)) && refused 1 "ulimit -f" compress "$tiny" -o "$work/s2" $options --calib "$work/A" --work "$work/W" --resume)
[ -e "$work/W.partial/layer-00003.nested" ] || fail "an error while writing cost the work folder"
[ ! -e "$work/s2" ] && [ ! -e "$work/s2.partial" ] || fail "half an output"
refused 2 "must be another directory" compress "$tiny" -o "$work/zz" $options --work "$work/zz"
[ ! -e "$work/zz" ] || fail "work files in the output"

# SIGTERM: ends at the next safe point, says how to go on, and goes on to the same bytes. A second one ends at once.
"$command" compress "$tiny" -o "$work/term" $options --calib "$work/A" >/dev/null 2>"$work/err" &
pid=$!
tries=0
until [ -e "$work/term.work.partial/layer-00000.nested" ] || [ "$tries" -gt 2000 ]; do sleep 0.02; tries=$((tries + 1)); done
kill -TERM "$pid"
status=0
wait "$pid" || status=$?
[ "$status" -eq 1 ] || { cat "$work/err"; fail "SIGTERM: exit $status"; }
has "$work/err" "with --resume goes on"
[ ! -e "$work/term" ] && [ ! -e "$work/term.partial" ] || fail "half an output after SIGTERM"
compress "$tiny" term --calib "$work/A" --resume
same a term "after SIGTERM another model came out"
[ "$(ls "$work" | grep -c '^term')" -eq 1 ] || fail "folders left behind"

# Training: nothing stands in -o before it is trained, and no folder is left.
compress "$tiny" trained --calib "$work/A" --recover train --train-steps 1 --alloc uniform &
pid=$!
while kill -0 "$pid" 2>/dev/null; do
    [ ! -e "$work/trained" ] || [ -e "$work/trained/recovery.csv" ] || fail "an untrained checkpoint in the output"
    sleep 0.05
done
wait "$pid" || fail "--recover train"
[ -e "$work/trained/recovery.csv" ] || fail "not trained"
[ "$(ls "$work" | grep -c '^trained')" -eq 1 ] || { ls "$work"; fail "folders of the training left behind"; }

# What this program did not make is never deleted.
mkdir "$work/x.partial"
echo precious >"$work/x.partial/letter"
refused 1 "did not make it" compress "$tiny" -o "$work/x" $options
refused 1 "did not make it" synth llama-3.2-1b --layers 1 -o "$work/x"
refused 1 "did not make it" expand "$work/a" -o "$work/x"
[ "$(cat "$work/x.partial/letter")" = precious ] || fail "a foreign folder was emptied"
cp -r "$tiny" "$work/q.partial"
refused 1 "did not make it" compress "$work/q.partial" -o "$work/q" $options
[ -e "$work/q.partial/model.safetensors" ] || fail "compress deleted its source model"
cp -r "$tiny" "$work/download"
refused 2 "did not write" compress "$tiny" -o "$work/download" $options
[ -e "$work/download/model.safetensors" ] || fail "a checkpoint of others was replaced"

# recover: another student, teacher, configuration or kernel set is another run; an edited state is refused.
recover() {
    "$command" recover "$1" -o "$work/r" --text "$work/A" --train mlp --teacher "$2" --steps 3 --batch 1 --ctx 32 --heldout 1 \
        --eval-every 1 --explore 0 $3 >/dev/null 2>"$work/err"
}
rm -rf "$work/m" && cp -r "$tiny" "$work/m"
cp -r "$tiny" "$work/t"
(ulimit -f 64; recover "$work/m" "$work/t" "") && fail "a state of megabytes in 32 kB"
: >"$work/err" # the shell empties it only when the command begins
"$command" recover "$work/m" -o "$work/r" --text "$work/A" --train mlp --teacher "$work/t" --steps 3 --batch 1 --ctx 32 --heldout 1 \
    --eval-every 1 --explore 0 >/dev/null 2>"$work/err" &
pid=$!
until grep -qs "^step 1/" "$work/err"; do kill -0 "$pid" 2>/dev/null || break; sleep 0.02; done
kill -9 "$pid" 2>/dev/null || true
wait "$pid" 2>/dev/null || true
[ -e "$work/r.recover.partial/state" ] || { cat "$work/err"; fail "a run that was killed left no state"; }
cp -r "$work/r.recover.partial" "$work/state"
for part in m t; do
    printf '\011' | dd of="$work/$part/model.safetensors" bs=1 seek=$((size - 3)) conv=notrunc 2>/dev/null
    recover "$work/m" "$work/t" --resume && fail "resumed with another $part"
    has "$work/err" "another model, teacher"
    cp "$tiny/model.safetensors" "$work/$part/model.safetensors"
done
for part in m t; do
    sed 's/"rms_norm_eps": *[0-9.e-]*/"rms_norm_eps": 0.5/' "$tiny/config.json" >"$work/$part/config.json"
    recover "$work/m" "$work/t" --resume && fail "resumed with another configuration of $part"
    has "$work/err" "another model, teacher"
    cp "$tiny/config.json" "$work/$part/config.json"
done
recover "$work/m" "$work/t" "--resume --isa ref" && fail "resumed with another kernel set"
has "$work/err" "kernel set"
for at in 0 16 32 40 100 5000; do
    rm -rf "$work/r.recover.partial" && cp -r "$work/state" "$work/r.recover.partial"
    printf '\377\377\177' | dd of="$work/r.recover.partial/state" bs=1 seek="$at" conv=notrunc 2>/dev/null
    status=0
    recover "$work/m" "$work/t" --resume || status=$?
    [ "$status" -eq 1 ] || fail "an edited state: exit $status"
    has "$work/err" "damaged"
done
echo ok
