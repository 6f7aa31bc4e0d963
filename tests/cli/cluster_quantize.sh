#!/bin/sh
# quantize under mpirun: the bytes of one process, from the beginning and from what another number of processes left.
. "$2/tests/lib/mpi.sh"

pack() { # processes, model, output, more
    n=$1 model=$2 out=$3
    shift 3
    set -- quantize "$model" -o "$work/$out" --calib-tokens 448 --heldout 192 --ctx 64 -t 1 "$@"
    if [ "$n" = 1 ]; then "$command" "$@"; else mpirun -n "$n" "$command" "$@"; fi >"$work/out" 2>"$work/err" ||
        { cat "$work/err"; fail "quantize of $model on $n processes"; }
}
same() { diff -r "$work/$1" "$work/$2" >"$work/diff" || { head -c 500 "$work/diff"; fail "$3"; }; }
steady() { sed 's/"output":[^,]*,//; s/"seconds":.*//' "$work/out"; }
check() { # processes, model, what is asked for: files and numbers of one process
    counts=$1 model=$2
    shift 2
    rm -rf "$work/one"
    pack 1 "$model" one "$@" --json
    steady >"$work/one.json"
    grep -q '"kl":0\.' "$work/one.json" || { cat "$work/one.json"; fail "no loss was measured"; }
    for n in $counts; do
        rm -rf "$work/several"
        pack "$n" "$model" several "$@" --json
        same one several "$model $*: $n processes write another checkpoint"
        steady | cmp -s - "$work/one.json" || { cat "$work/one.json" "$work/out"; fail "$model $*: $n processes have other numbers"; }
    done
    ls -A "$work" | grep -q partial && fail "a work folder was left"
    return 0
}

# Seven windows and three held out: with four processes some have more than others, and one has nothing to score.
small_model llama # an embedding beside the head; fewer rows than processes could share
check "2 4" "$work/llama" --format q4z --head q4
check "3 4" "$work/llama" --budget-bytes 50000
"$command" compress "$work/llama" -o "$work/factors" --ratio 0.4 --calib-tokens 512 --heldout 128 --ctx 64 --rounds 0 \
    --tile 4 -t 1 >/dev/null 2>"$work/err" || { cat "$work/err"; fail "compress"; }
check "2 4" "$work/factors" --format q4 --head q6
check 4 "$tiny" --format q8 --head fp8
check 2 "$tiny" --format q4 # last: the next part compares with its $work/one

# A process dies at any time: the job ends, and another number of processes goes on to the same bytes.
cat >"$work/member" <<END
echo \$\$ >"$work/pid.\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}"
exec "$command" quantize "$tiny" -o "$work/killed" --format q4 --calib-tokens 448 --heldout 192 --ctx 64 -t 1 "\$@"
END
begin=$(now_ms)
pack 4 "$tiny" four --format q4
same one four "4 processes write another checkpoint"
took_ms=$(($(now_ms) - begin)) victim=$(($(now_ms) % 4)) share=$(($(now_ms) / 4 % 100))
timeout 120 mpirun -n 4 sh "$work/member" >"$work/log" 2>&1 &
job=$!
sleep "$(awk "BEGIN { print $took_ms * $share / 100000 }")"
[ -s "$work/pid.$victim" ] && kill -9 "$(cat "$work/pid.$victim")" 2>/dev/null || true
code=0
wait $job || code=$?
[ $code -ne 124 ] || fail "rank $victim killed at $share % of $took_ms ms: the job hangs"
[ ! -e "$work/killed" ] || same one killed "rank $victim killed at $share % of $took_ms ms: half an output"
pack 2 "$tiny" killed --format q4 --resume
same one killed "rank $victim killed at $share % of $took_ms ms, resumed on 2: other bytes"
ls -A "$work" | grep -q partial && fail "a work folder was left"

# What several processes do not do is said once, before the work.
small_model mixtral
for words in "$work/mixtral --format q8" "$tiny --format q8 --ctx 1" "$tiny"; do
    # shellcheck disable=SC2086
    timeout 60 mpirun -n 2 "$command" quantize $words -o "$work/no" >"$work/out" 2>"$work/err" && fail "accepted: $words"
    [ "$(grep -c '^neuronmlp' "$work/err")" -eq 1 ] || { cat "$work/err"; fail "not one message: $words"; }
    case $words in *mixtral*) has "$work/err" "models with experts are quantised by one process, 2 were started" ;; esac
done
echo "cluster_quantize: ok (rank $victim killed at $share % of $took_ms ms, code $code)"
