#!/bin/sh
# A process of `mpirun quantize` and of `mpirun compress --budget-bytes` killed at times spread over the run, each time
# another rank: the job ends by itself, what it leaves is no half output, and --resume with another number of processes
# writes the bytes of one process. Then formats that tests/cli/cluster_quantize.sh does not have.
. "$2/tests/lib/mpi.sh"
processes=4 kills=${NMLP_TEST_KILLS:-2} # of each

for words in "quantize --budget-bytes 4200000" "compress --budget-bytes 3100000"; do
    verb=${words%% *} options=${words#* }
    cat >"$work/member" <<END
echo \$\$ >"$work/pid.\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}"
exec "$command" $verb "$tiny" -o "$work/out" $options --calib-tokens 1280 --heldout 256 --ctx 64 -t 1 --peer-timeout 120 "\$@"
END
    rm -rf "$work"/out* "$work/want"
    sh "$work/member" >"$work/log" 2>&1 || { cat "$work/log"; fail "$verb: one process"; }
    mv "$work/out" "$work/want"
    begin=$(now_ms)
    mpirun -n $processes sh "$work/member" >"$work/log" 2>&1 || { cat "$work/log"; fail "$verb: an undisturbed run"; }
    took_ms=$(($(now_ms) - begin))
    same() { diff -r "$work/want" "$work/out" >/dev/null || fail "$verb: $1"; }
    same "an undisturbed run has other bytes"
    for i in $(seq "$kills"); do
        kill_one member "$i"
        [ ! -e "$work/out" ] || same "kill $i of rank $victim left half an output" # whole, where it came late
        after=$((1 + i % 3))
        if [ $after -eq 1 ]; then sh "$work/member" --resume; else mpirun -n $after sh "$work/member" --resume; fi \
            >"$work/log" 2>&1 || { cat "$work/log"; fail "$verb: resume of kill $i on $after processes"; }
        same "kill $i of rank $victim, resumed on $after: other bytes"
        ls -A "$work" | grep -q partial && fail "$verb: kill $i: a work folder was left"
    done
    echo "$verb: $kills kills of $processes processes over $took_ms ms: the same bytes"
done

"$command" compress "$tiny" -o "$work/factors" --ratio 0.4 --calib-tokens 512 --heldout 128 --ctx 64 --rounds 0 \
    >/dev/null 2>"$work/err" || { cat "$work/err"; fail "compress"; }
for words in "$tiny --format q4 --group 64 --head bf16" "$work/factors --budget-bytes 3600000"; do
    for n in 1 3; do
        rm -rf "$work/out"
        # windows of 512: sums of a window have two parts
        # shellcheck disable=SC2086
        mpirun -n $n "$command" quantize $words -o "$work/out" --calib-tokens 3584 --heldout 1536 -t 1 >"$work/log" 2>&1 ||
            { cat "$work/log"; fail "$words on $n processes"; }
        if [ $n = 1 ]; then
            rm -rf "$work/one"
            mv "$work/out" "$work/one"
        else
            diff -r "$work/one" "$work/out" >/dev/null || fail "$words: $n processes write another checkpoint"
        fi
    done
done
echo "cluster_kills_quantize: ok"
