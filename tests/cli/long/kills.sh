#!/bin/sh
# Commands killed at arbitrary times, again and again, over an output that exists: a reader always sees a whole model, and what comes
# out in the end has the bytes of an undisturbed run and no other files. Smaller models and more kills: tests/faults (faults_random).
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
fail() { echo "FAILED: $1"; exit 1; }
head -c 20000 "$tiny/calib.txt" >"$work/text"
mkdir "$work/suite"
head -c 6000 "$tiny/calib.txt" >"$work/suite/ptb.test.txt"
for i in 1 2 3 4 5 6 7 8; do
    echo "{\"id\": \"$i\", \"question\": \"The cat $i sat on\", \"choices\": [\"the mat\", \"of\"], \"gold\": 0}"
done >"$work/suite/openbookqa_test.jsonl"

compress() { exec "$command" compress "$tiny" -o "$1" --ratio "$2" --calib "$work/text" --calib-tokens 512 --heldout 128 --ctx 64 --rounds 0 --resume; }
quantize() { exec "$command" quantize "$tiny" -o "$1" --format "$2" --calib "$work/text" --calib-tokens 512 --heldout 128 --ctx 64 --resume; }
recover() {
    exec "$command" recover "$work/source" -o "$1" --text "$work/text" --teacher "$tiny" --steps "$2" --batch 1 --ctx 32 --heldout 1 --eval-every 1 \
        --explore 0 --resume
}
tree() { (cd "$1" && find . -type f | LC_ALL=C sort | xargs cksum); }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }

# attack NAME OPTION OTHER_OPTION: of two options the first is wanted, the second stands there before
attack() {
    name=$1
    began=$(milliseconds)
    ("$name" "$work/want" "$2") >/dev/null 2>&1 || fail "$name: an undisturbed run"
    whole_ms=$(($(milliseconds) - began))
    ("$name" "$work/old" "$3") >/dev/null 2>&1 || fail "$name: the older output"
    tree "$work/want" >"$work/tree.want"
    tree "$work/old" >"$work/tree.old"
    cp -r "$work/old" "$work/out"
    before=$(ls -A "$work" | sort | tr '\n' ' ')
    kills=0 finished=0
    for share in $shares; do
        "$name" "$work/out" "$2" >/dev/null 2>"$work/err" &
        pid=$!
        sleep "$(awk "BEGIN { print $whole_ms * $share / 1e5 }")"
        kill -9 "$pid" 2>/dev/null && kills=$((kills + 1)) || finished=$((finished + 1))
        wait "$pid" 2>/dev/null || true
        "$command" info "$work/out" >/dev/null || fail "$name: a model that does not open after a kill at $share %"
        tree "$work/out" | grep -v '/\.neuronmlp-work$' >"$work/tree"
        cmp -s "$work/tree" "$work/tree.want" || cmp -s "$work/tree" "$work/tree.old" || fail "$name: half a model after a kill at $share %"
    done
    ("$name" "$work/out" "$2") >/dev/null 2>"$work/err" || { cat "$work/err"; fail "$name: the last run"; }
    tree "$work/out" | cmp - "$work/tree.want" || fail "$name: killed and resumed, other files came out"
    rm -f "$work/tree" "$work/err"
    [ "$(ls -A "$work" | sort | tr '\n' ' ')" = "$before" ] || { ls -A "$work"; fail "$name: folders left behind"; }
    echo "$name: $kills kills, $finished runs ended before theirs"
    rm -rf "$work/want" "$work/old" "$work/out" "$work/tree.want" "$work/tree.old"
}

# Random times; the seed is printed, so that a failure can be looked for again.
seed=${NMLP_KILL_SEED:-$(date +%s)}
echo "NMLP_KILL_SEED=$seed"
shares=$(awk -v seed="$seed" 'BEGIN { srand(seed); for (i = 0; i < 12; i++) printf "%.1f ", i % 2 ? 100 * rand() : 85 + 20 * rand() }')
attack compress 0.3 0.4
attack quantize q4 q8
("$command" compress "$tiny" -o "$work/source" --ratio 0.3 --calib "$work/text" --calib-tokens 64 --heldout 0 --ctx 64 --alloc uniform --recover none) \
    >/dev/null 2>&1 || fail "the student"
attack recover 6 3

# eval: the state file grows; what is in it is not computed again, and the table is the same.
table() { "$command" eval "$work/source" --suite paper --data-dir "$work/suite" --ctx 64 --max-tokens 1000 --format csv --resume "$1"; }
began=$(milliseconds)
table "$work/want" >"$work/table.want" 2>/dev/null || fail "eval: an undisturbed run"
whole_ms=$(($(milliseconds) - began))
kills=0
for share in $shares; do
    (exec "$command" eval "$work/source" --suite paper --data-dir "$work/suite" --ctx 64 --max-tokens 1000 --format csv --resume "$work/state") >/dev/null 2>&1 &
    pid=$!
    sleep "$(awk "BEGIN { print $whole_ms * $share / 1e5 }")"
    kill -9 "$pid" 2>/dev/null && kills=$((kills + 1)) || rm -f "$work/state"
    wait "$pid" 2>/dev/null || true
done
table "$work/state" >"$work/table" 2>"$work/err" || { cat "$work/err"; fail "eval: the last run"; }
cmp "$work/table" "$work/table.want" || fail "eval: killed and resumed, another table"
without_times() { sed 's/"seconds":[^,}]*//g' "$1"; }
[ "$(without_times "$work/state")" = "$(without_times "$work/want")" ] || fail "eval: another state"
[ "$(ls -A "$work" | sort | tr '\n' ' ')" = "err source state suite table table.want text want " ] || { ls -A "$work"; fail "eval: files left behind"; }
echo "eval: $kills kills"
echo ok
