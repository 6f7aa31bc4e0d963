#!/bin/sh
# Several processes under mpirun give what one gives, and end together.
. "$2/tests/lib/mpi.sh"

# what depends on the clock goes
steady() { sed 's/"seconds":[^,}]*//; s/"tok_s":[^,}]*//'; }
score() { # processes, what to score: JSON without times
    n=$1
    shift
    if [ "$n" = 1 ]; then "$command" eval "$tiny" "$@" -t 1 --json 2>/dev/null; else
        mpirun -n "$n" "$command" eval "$tiny" "$@" -t 1 --json 2>"$work/err" || { cat "$work/err" >&2; fail "eval on $n"; }
    fi | steady
}
text="--text $tiny/calib.txt --max-tokens 700 --ctx 64"
task="--task-file $root/docs/examples/capitals.task.json --data $root/docs/examples/capitals.csv"
for what in "$text" "$task"; do
    # shellcheck disable=SC2086
    score 1 $what >"$work/one"
    grep -q model_hash "$work/one" || fail "eval said nothing: $what"
    for n in 2 4; do
        # shellcheck disable=SC2086
        score $n $what >"$work/several"
        cmp -s "$work/one" "$work/several" || { cat "$work/one" "$work/several"; fail "eval on $n processes differs"; }
    done
done

# Gradients of shares of a batch, summed: the curve of one process to float32 rounding, which AdamW makes larger.
head -c 8000 "$tiny/calib.txt" >"$work/text"
train() { # processes, output, more
    n=$1 out=$2
    shift 2
    set -- recover "$tiny" -o "$work/$out" --text "$work/text" --train mlp --teacher "$tiny" --explore 0.5 --steps 3 \
        --batch 3 --ctx 32 --lr 1e-3 --eval-every 1 --heldout 3 -t 1 "$@"
    if [ "$n" = 1 ]; then "$command" "$@"; else mpirun -n "$n" "$command" "$@"; fi >"$work/out" 2>"$work/err"
}
close() { # the logs of two runs, number by number
    paste -d, "$1" "$2" | awk -F, 'NR > 1 { for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d < 0) d = -d
        if (d > 5e-4 * ($i < 0 ? -$i : $i) + 1e-9) { print "column " i ": " $0; exit 1 } } }'
}
train 1 alone || { cat "$work/err"; fail "recover on one process"; }
[ "$(wc -l <"$work/alone/recovery.csv")" -eq 5 ] || fail "the log is short"
for n in 2 4; do
    train $n "on$n" || { cat "$work/err"; fail "recover on $n processes"; }
    close "$work/alone/recovery.csv" "$work/on$n/recovery.csv" || fail "recover on $n processes has another curve"
    [ "$(grep -c 'held-out perplexity' "$work/out")" -eq 1 ] || fail "$n processes spoke"
done
ls -A "$work" | grep -q partial && fail "a work folder was left"

# A model shared by processes: the same text, logits within 1e-5 of the largest; factors of each form too.
"$command" compress "$tiny" -o "$work/factors" --ratio 0.4 --calib-tokens 512 --heldout 128 --ctx 64 --rounds 0 \
    >/dev/null 2>"$work/err" || { cat "$work/err"; fail "compress"; }
ids=558,717,894,12,99,3,4,77
same_logits() { # two JSON files: numbers of their logits
    for file in "$1" "$2"; do sed 's/.*"logits":\[\([^"]*\)\],"argmax".*/\1/; s/[][]//g' "$file" | tr , '\n' >"$file.numbers"; done
    paste "$1.numbers" "$2.numbers" | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; m = $1 < 0 ? -$1 : $1
        if (m > most) most = m } END { if (NR < 8192 || !(worst <= 1e-5 * most)) { print NR " numbers, off by " worst " of " most; exit 1 } }'
}
for model in "$tiny" "$work/factors"; do
    "$command" run "$model" -p "The old house" -n 12 --precision f32 -t 1 >"$work/one" 2>/dev/null
    "$command" logits "$model" --ids $ids --positions 2,7 -t 1 --json >"$work/one.json"
    for n in 2 4; do
        mpirun -n $n "$command" run "$model" -p "The old house" -n 12 --precision f32 -t 1 >"$work/several" 2>"$work/err" ||
            { cat "$work/err"; fail "run on $n processes"; }
        cmp -s "$work/one" "$work/several" || { cat "$work/one" "$work/several"; fail "run on $n processes differs"; }
        mpirun -n $n "$command" logits "$model" --ids $ids --positions 2,7 -t 1 --json >"$work/several.json" 2>/dev/null
        same_logits "$work/one.json" "$work/several.json" || fail "logits on $n processes differ"
    done
done
mpirun -n 3 "$command" run "$tiny" -p a >/dev/null 2>"$work/err" && fail "3 processes shared 4 heads"
grep -q 'cannot share 2 key/value heads' "$work/err" || { cat "$work/err"; fail "no word on the heads"; }

# One message, whatever the number of processes; and nobody waits for ever.
for words in "info $tiny" "eval $tiny --text $work/none" "eval $tiny --text $tiny/calib.txt --ctx 1" "eval $tiny"; do
    # shellcheck disable=SC2086
    timeout 60 mpirun -n 2 "$command" $words >"$work/out" 2>"$work/err" && fail "accepted: $words"
    [ "$(grep -c '^neuronmlp' "$work/err")" -eq 1 ] || { cat "$work/err"; fail "not one message: $words"; }
done
# The second process is stopped: the first ends the job when its time is over.
cat >"$work/half" <<END
[ "\$OMPI_COMM_WORLD_RANK\$PMI_RANK" = 1 ] && (sleep 2; kill -STOP \$\$; sleep 150; kill -9 \$\$) &
exec "$command" eval "$tiny" --text "$tiny/calib.txt" --max-tokens 60000 --ctx 64 -t 1 --peer-timeout 3
END
begin=$(date +%s)
timeout 200 mpirun -n 2 sh "$work/half" >"$work/out" 2>"$work/err" && fail "a stuck peer was not noticed"
[ $(($(date +%s) - begin)) -lt 140 ] || fail "a stuck peer held the job"
grep -q 'waited 3 s for the others' "$work/err" || { cat "$work/err"; fail "no word on the stuck peer"; }
