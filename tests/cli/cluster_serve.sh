#!/bin/sh
# A model that processes share behind serve and bench model, and quantised weights in slices: answers are those of one.
. "$2/tests/lib/mpi.sh"
job=
trap '[ -z "$job" ] || kill $job 2>/dev/null; rm -rf "$work"' EXIT
command -v curl >/dev/null || { echo "SKIPPED: no curl: a shared server is NOT tested"; exit 77; }

# Four clients at once of a server on two processes, two that began alike.
start() { # more options
    : >"$work/log"
    timeout 120 mpirun -n 2 sh "$work/member" serve "$tiny" --port 0 --precision f32 -t 1 --grace 1 "$@" >"$work/log" 2>&1 &
    job=$!
    for i in $(seq 240); do grep -q '"ready"' "$work/log" && break; sleep 0.25; done
    url=$(sed -n 's/.*"ready".*"url":"\([^"]*\)".*/\1/p' "$work/log")
    [ -n "$url" ] || { cat "$work/log"; fail "the server did not start"; }
}
cat >"$work/member" <<END
echo \$\$ >"$work/pid.\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}"
exec "$command" "\$@"
END
ask() { curl -s -m 60 "$url/v1/completions" -d "{\"model\":\"tiny\",\"prompt\":\"$1\",\"max_tokens\":12,\"temperature\":0}"; }
start
n=0
for prompt in "The old house" "The old house was" "Once upon a time" "We went to"; do
    n=$((n + 1))
    ask "$prompt" >"$work/answer.$n" &
    eval "client_$n=$!"
done
for i in 1 2 3 4; do eval "wait \$client_$i" || fail "request $i"; done
n=0
for prompt in "The old house" "The old house was" "Once upon a time" "We went to"; do
    n=$((n + 1))
    "$command" run "$tiny" -p "$prompt" -n 12 --precision f32 -t 1 --json 2>/dev/null >"$work/alone"
    want=$(sed 's/.*"text":"\(\([^"\\]\|\\.\)*\)".*/\1/' "$work/alone")
    got=$(sed 's/.*"text":"\(\([^"\\]\|\\.\)*\)".*/\1/' "$work/answer.$n")
    case $want in *"$got") ;; *) fail "of \"$prompt\": $got, alone: $want" ;; esac
    [ -n "$got" ] || { cat "$work/answer.$n"; fail "no answer"; }
done
kill -TERM "$(cat "$work/pid.0")"
wait $job || { cat "$work/log"; fail "the server did not end in order"; }
# A process that is stuck ends the server with a message, when somebody asks.
start --peer-timeout 2
kill -STOP "$(cat "$work/pid.1")"
ask "The old house" >/dev/null || true
for i in $(seq 120); do grep -q 'waited 2 s for the others' "$work/log" && break; sleep 0.25; done
kill -9 "$(cat "$work/pid.1")" # mpirun waits for a stopped process too
code=0
wait $job || code=$?
[ $code -ne 0 ] && [ $code -ne 124 ] || fail "a stuck process was not noticed"
job=
grep -q 'waited 2 s for the others' "$work/log" || { cat "$work/log"; fail "no word on the stuck process"; }

mpirun -n 2 "$command" bench model "$tiny" --rounds 1 --batch 1,3 -t 1 --json >"$work/json" 2>"$work/err" || { cat "$work/err"; fail "bench model"; }
[ "$(grep -c '"decode x3"' "$work/json")" -eq 1 ] || { cat "$work/json"; fail "not one report of bench model"; }
grep -q '"split":".* layers dense; a wait takes .*","computed_ms":[0-9.]' "$work/json" || { cat "$work/json"; fail "no split in bench model"; }
for words in "bench peak" "serve $tiny --compare $tiny --port 0"; do
    # shellcheck disable=SC2086
    timeout 60 mpirun -n 2 "$command" $words >"$work/out" 2>"$work/err" && fail "accepted: $words"
    [ "$(grep -c '^neuronmlp' "$work/err")" -eq 1 ] || { cat "$work/err"; fail "not one message: $words"; }
done

# Quantised weights by slices. Activations are rounded to 16 bits in front of them, so a difference in the last bit of a
# sum becomes one of 2^-16 of the largest in 32: within 2e-4 of the largest logit.
for format in q8 q6 q4 q4z q5m; do
    "$command" quantize "$tiny" -o "$work/$format" --format $format --calib-tokens 128 --heldout 64 --ctx 64 >/dev/null 2>"$work/err" ||
        { cat "$work/err"; fail "quantize"; }
    "$command" logits "$work/$format" --ids 558,717,894,12,99 --positions 2,4 -t 1 --json >"$work/one"
    mpirun -n 2 "$command" logits "$work/$format" --ids 558,717,894,12,99 --positions 2,4 -t 1 --json >"$work/two" 2>"$work/err" ||
        { cat "$work/err"; fail "$format on 2 processes"; }
    for file in "$work/one" "$work/two"; do sed 's/.*"logits":\[\([^"]*\)\],"argmax".*/\1/; s/[][]//g' "$file" | tr , '\n' >"$file.numbers"; done
    paste "$work/one.numbers" "$work/two.numbers" | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; m = $1 < 0 ? -$1 : $1
        if (m > most) most = m } END { if (NR < 8192 || !(worst <= 2e-4 * most)) { print NR " numbers, off by " worst " of " most; exit 1 } }' ||
        fail "$format on 2 processes differs"
done
echo "cluster_serve: ok"
