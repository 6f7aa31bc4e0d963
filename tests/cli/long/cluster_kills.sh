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
begin=$(now_ms)
mpirun -n $processes sh "$work/member" >"$work/log" 2>&1 || { cat "$work/log"; fail "an undisturbed run"; }
took_ms=$(($(now_ms) - begin))
mv "$work/out" "$work/want"

for i in $(seq "$kills"); do
    kill_one member "$i"
    if [ -e "$work/out" ]; then # whole, where the kill came behind the last step
        diff -r "$work/want" "$work/out" >/dev/null || fail "kill $i of rank $victim left half an output"
    fi
    after=$((1 << i % 3))
    if [ $after -eq 1 ]; then sh "$work/member" --resume; else mpirun -n $after sh "$work/member" --resume; fi \
        >"$work/log" 2>&1 || { cat "$work/log"; fail "resume of kill $i on $after processes"; }
    diff -r "$work/want" "$work/out" >/dev/null || fail "kill $i of rank $victim, resumed on $after: other bytes"
    ls -A "$work" | grep -q partial && fail "kill $i: a work folder was left"
done
echo "$kills kills of $processes processes over $took_ms ms: all resumed to the same bytes"
