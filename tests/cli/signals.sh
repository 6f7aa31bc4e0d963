#!/bin/sh
# Signals: the first asks for the next safe point (work_folders has it), the second ends at once whatever the first was, and whoever reads
# a result may go away.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
fail() { echo "FAILED: $1"; exit 1; }
options="--ratio 0.3 --calib-tokens 1024 --heldout 64 --ctx 64 --rounds 0 -t 1"

# begins PLACE WORDS…: a command in the background, once its work folder or a file there is made
begins() {
    folder=$1
    shift
    env --default-signal=INT "$command" "$@" >/dev/null 2>"$work/err" & # a shell lets what runs behind it ignore SIGINT
    pid=$!
    for _ in $(seq 6000); do # a minute: machines are busy
        [ ! -e "$folder" ] || return 0
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.01
    done
    cat "$work/err"
    fail "$1 does not begin"
}
# Both signals wait for a stopped process, so that the second one comes before any safe point.
twice() {
    kill -STOP "$pid"
    kill "-$1" "$pid"
    kill "-$2" "$pid"
    kill -CONT "$pid"
    status=0
    wait "$pid" || status=$?
}

# shellcheck disable=SC2086
begins "$work/a.work.partial" compress "$tiny" -o "$work/a" $options
twice TERM INT
[ "$status" -eq 130 ] || [ "$status" -eq 143 ] || { cat "$work/err"; fail "compress, two signals: exit $status"; }
[ ! -s "$work/err" ] || { cat "$work/err"; fail "words after the second signal: it ended at a safe point"; }
[ ! -e "$work/a" ] || fail "an output after two signals"
# What was saved is used, and the result is that of a run nobody disturbed.
# shellcheck disable=SC2086
"$command" compress "$tiny" -o "$work/a" $options --resume >/dev/null 2>"$work/err" || { cat "$work/err"; fail "resume after two signals"; }
# A signal that was to be ignored stays so, as a shell wants it for what runs behind it.
# shellcheck disable=SC2086
"$command" compress "$tiny" -o "$work/b" $options >/dev/null 2>"$work/err" &
pid=$!
for _ in $(seq 6000); do [ ! -e "$work/b.work.partial" ] || break; sleep 0.01; done
kill -INT "$pid"
wait "$pid" || { cat "$work/err"; fail "an ignored SIGINT"; }
cmp "$work/a/model.safetensors" "$work/b/model.safetensors" || fail "another model after two signals"
[ "$(ls "$work" | tr '\n' ' ')" = "a b err " ] || { ls "$work"; fail "stray files after two signals"; }

# Whatever keeps its work ends at the next safe point, says how to go on, and goes on to what an undisturbed run gives.
# stopped SIGNAL PLACE OUT WORDS…: `OUT` is what is compared, `same` how
stopped() {
    signal=$1 place=$2 out=$3
    shift 3
    "$command" "$@" >/dev/null 2>"$work/err" || { cat "$work/err"; fail "$1, undisturbed"; }
    mv "$work/$out" "$work/want"
    begins "$place" "$@"
    kill "-$signal" "$pid"
    status=0
    wait "$pid" || status=$?
    [ "$status" -eq 1 ] || { cat "$work/err"; fail "$1 ends with $status after SIG$signal"; }
    grep -q "goes on" "$work/err" || { cat "$work/err"; fail "$1 does not say how to go on"; }
    [ "$out" = state ] || [ ! -e "$work/$out" ] || fail "$1: half an output after SIG$signal"
    [ "$out" = state ] || set -- "$@" --resume
    "$command" "$@" >/dev/null 2>"$work/err" || { cat "$work/err"; fail "$1 does not go on"; }
}
same() { for file in "$work/want"/*; do cmp "$file" "$work/$1/${file##*/}" || fail "another ${file##*/} after a signal"; done; rm -rf "$work/want" "$work/${1:?}"; }
head -c 20000 "$tiny/calib.txt" >"$work/text"
few="--calib $work/text --calib-tokens 256 --heldout 64 --ctx 64 -t 1"
# shellcheck disable=SC2086
stopped INT "$work/q.work.partial/layer-00000.quant" q quantize "$tiny" -o "$work/q" --format q4 $few
same q
stopped TERM "$work/r.recover.partial/state" r recover "$tiny" -o "$work/r" --text "$work/text" --train mlp --steps 12 --batch 1 --ctx 32 --heldout 1 \
    --eval-every 4 -t 1
same r
mkdir "$work/suite"
head -c 4000 "$tiny/calib.txt" >"$work/suite/wikitext2.test.txt"
head -c 100000 "$tiny/calib.txt" >"$work/suite/ptb.test.txt"
stopped INT "$work/state" state eval "$tiny" --suite paper --data-dir "$work/suite" --ctx 64 --resume "$work/state" -t 1
without_times() { sed 's/"seconds":[^,}]*//g' "$1"; }
[ "$(without_times "$work/state")" = "$(without_times "$work/want")" ] || fail "eval: other results after a signal"
rm -rf "$work/want" "$work/state" "$work/suite"
stopped INT "$work/o.work.partial/layers.partial/layer-00000.nested" o optimize "$tiny" -o "$work/o" --for trn1 --tile 32 --max-loss 5% --calib "$work/text" --calib-tokens 64 --heldout 64 \
    --verify 64 --ctx 64 -t 1
rm "$work/want/optimize.json" "$work/want/optimize.html" # they have times
same o
[ "$(ls "$work" | tr '\n' ' ')" = "a b err text " ] || { ls "$work"; fail "stray files after signals"; }

# A server that finishes requests after the first SIGTERM ends at the second.
"$command" serve "$tiny" --port 0 --grace 60 -t 1 >/dev/null 2>"$work/log" &
pid=$!
for _ in $(seq 6000); do ! grep -q '"ready"' "$work/log" || break; sleep 0.01; done
port=$(sed -n 's/.*"ready".*127\.0\.0\.1:\([0-9]*\).*/\1/p' "$work/log")
curl -s -N -o "$work/answer" "http://127.0.0.1:$port/v1/completions" -d '{"prompt":"The","max_tokens":400,"n":64,"ignore_eos":true,"stream":true}' &
client=$!
for _ in $(seq 6000); do [ ! -s "$work/answer" ] || break; sleep 0.01; done
kill -TERM "$pid"
sleep 0.1
kill -0 "$pid" 2>/dev/null || fail "the first SIGTERM did not let a request finish"
kill -TERM "$pid"
begin=$(date +%s)
status=0
wait "$pid" || status=$?
[ "$status" -eq 0 ] || { cat "$work/log"; fail "serve, two SIGTERM: exit $status"; }
[ $(($(date +%s) - begin)) -le 5 ] || fail "serve goes on after the second SIGTERM"
wait "$client" || true

# Whoever reads goes away: nothing is said, whatever writes.
for words in "run $tiny -p The -n 200 --ctx 256" "tokenize $tiny -f $tiny/calib.txt" "plan --target trn1 --op xw --shape 128,128,128 --json" \
    "help" "info $tiny"; do
    # shellcheck disable=SC2086
    { "$command" $words 2>"$work/err" || echo $? >"$work/status"; } | : # nobody reads
    grep -qE '^neuronmlp.*(pipe|write)' "$work/err" && { cat "$work/err"; fail "$words: words about a closed pipe"; }
done
echo "signals: ok"
