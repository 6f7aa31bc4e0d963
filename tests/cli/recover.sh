#!/bin/sh
# recover as typed: output, JSON, refusals, and a run killed without warning that ends in the same bytes.
. "$2/tests/lib/cli.sh"

text=$work/text
head -c 20000 "$root/models/tiny/calib.txt" >"$text"
become() { # output, more options; replaces the shell it runs in, so that killing that shell kills the command
    out=$1
    shift
    exec "$command" recover "$root/models/tiny" -o "$work/$out" --text "$text" --train mlp --teacher "$root/models/tiny" \
        --steps 14 --batch 2 --ctx 64 --lr 1e-4 --eval-every 1 --heldout 2 --patience 0 --seed 3 "$@"
}
train() { (become "$@"); }

train whole --json >"$work/json" 2>"$work/err" || { cat "$work/err"; fail "a plain run"; }
for key in steps tokens loss_first loss_last heldout_ppl_before heldout_ppl_after seconds output; do
    grep -q "\"$key\"" "$work/json" || fail "JSON has no $key"
done
grep -q "held-out ppl" "$work/err" || fail "no progress"
[ "$(wc -l <"$work/whole/recovery.csv")" -eq 16 ] || fail "the log has not one line for each step"
grep -q "^| held-out perplexity, before and after | [0-9.]*, [0-9.]* |" "$work/whole/README.md" || fail "no quality in the model card"
grep -q "<svg" "$work/whole/recovery.svg" || fail "no curve"
[ ! -e "$work/whole.recover.partial" ] || fail "the state outlived the run"
"$command" info "$work/whole" >/dev/null || fail "the output does not open"

become parts >/dev/null 2>"$work/killed" &
pid=$!
tries=0
until grep -qs "^step 4/" "$work/killed"; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "no step in a minute"
    sleep 0.1
done
kill -9 $pid
wait $pid 2>/dev/null || true
[ ! -e "$work/parts" ] || fail "the run was over before it was killed"
train parts --resume >/dev/null 2>"$work/err" || { cat "$work/err"; fail "--resume"; }
grep -q "^step 1/" "$work/err" && fail "it started anew"
cmp "$work/whole/model.safetensors" "$work/parts/model.safetensors" || fail "resumed weights differ"
cmp "$work/whole/recovery.csv" "$work/parts/recovery.csv" || fail "resumed log differs"

refused() { # exit code, words in the message, arguments
    code=0
    want=$1
    words=$2
    shift 2
    "$command" recover "$@" >"$work/out" 2>"$work/err" || code=$?
    [ $code -eq "$want" ] || fail "$*: exit $code, expected $want"
    grep -q -e "$words" "$work/err" || { cat "$work/err"; fail "$*: message without \"$words\""; }
}
refused 2 "-o DIR" "$root/models/tiny" --text "$text"
refused 2 "--text FILE" "$root/models/tiny" -o "$work/x"
refused 1 "no MLP matrix" "$root/models/tiny" -o "$work/x" --text "$text"
refused 2 "is the model that is read" "$root/models/tiny" -o "$root/models/tiny" --text "$text"
refused 2 "is the model that is read" "$work/whole" -o "$work/parts" --text "$text" --teacher "$work/parts"
refused 2 "--mode half" "$root/models/tiny" -o "$work/x" --text "$text" --mode half
refused 1 "--ctx is 4096" "$root/models/tiny" -o "$work/x" --text "$text" --train mlp --ctx 4096
refused 1 "absent.txt" "$root/models/tiny" -o "$work/x" --text "$work/absent.txt" --train mlp
echo "a few words" >"$work/short"
refused 1 "needs at least" "$root/models/tiny" -o "$work/x" --text "$work/short" --train mlp
