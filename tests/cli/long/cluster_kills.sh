#!/bin/sh
# A process of `mpirun compress` killed at some times spread over the run (NMLP_TEST_KILLS), each time another rank: the job ends by itself,
# what it leaves is no half output, and --resume with another number of processes writes the bytes of an undisturbed run.
. "$2/tests/lib/mpi.sh"
processes=4 kills=${NMLP_TEST_KILLS:-6} # 20 take two minutes
cat >"$work/member" <<END
echo \$\$ >"$work/pid.\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}"
exec "$command" compress "$root/models/tiny" -o "$work/out" --ratio 0.4 --calib-tokens 1280 --heldout 256 --ctx 64 \
    --rounds 0 -t 1 --peer-timeout 120 "\$@"
END
now_ms() { date +%s%3N; }
begin=$(now_ms)
mpirun -n $processes sh "$work/member" >"$work/log" 2>&1 || { cat "$work/log"; fail "an undisturbed run"; }
took_ms=$(($(now_ms) - begin))
mv "$work/out" "$work/want"

ended=0
for i in $(seq "$kills"); do
    rm -rf "$work"/out* "$work"/pid.*
    victim=$((i * 7 % processes))
    timeout 300 mpirun -n $processes sh "$work/member" >"$work/log" 2>&1 &
    job=$!
    sleep "$(awk "BEGIN { print $took_ms * $i / ($kills * 1000) }")"
    [ -s "$work/pid.$victim" ] && kill -9 "$(cat "$work/pid.$victim")" 2>/dev/null || true
    code=0
    wait $job || code=$?
    [ $code -ne 124 ] || fail "kill $i of rank $victim: the job hangs"
    if [ $code -eq 0 ]; then ended=$((ended + 1)); fi
    if [ $code -ne 0 ] && [ -e "$work/out" ]; then # whole, where the kill came behind the last step
        diff -r "$work/want" "$work/out" >/dev/null || fail "kill $i of rank $victim left half an output"
    fi
    after=$((1 << i % 3))
    if [ $after -eq 1 ]; then sh "$work/member" --resume; else mpirun -n $after sh "$work/member" --resume; fi \
        >"$work/log" 2>&1 || { cat "$work/log"; fail "resume of kill $i on $after processes"; }
    diff -r "$work/want" "$work/out" >/dev/null || fail "kill $i of rank $victim, resumed on $after: other bytes"
    ls -A "$work" | grep -q partial && fail "kill $i: a work folder was left"
done
[ $ended -le $((kills / 2)) ] || fail "only $((kills - ended)) of $kills runs met their kill"
echo "$kills kills of $processes processes over $took_ms ms: $ended runs had ended before, all resumed to the same bytes"
