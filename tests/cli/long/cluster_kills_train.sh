#!/bin/sh
# A process of `mpirun recover` and of `mpirun eval` killed at times spread over the run, each time another rank: the
# job ends by itself and leaves no half output; recover with --resume on as many processes writes the bytes of an
# undisturbed run, eval gives its numbers on any number of them.
. "$2/tests/lib/mpi.sh"
processes=4 kills=${NMLP_TEST_KILLS:-3} # of each; 20 take five minutes
head -c 8000 "$tiny/calib.txt" >"$work/text"
cat >"$work/recover" <<END
echo \$\$ >"$work/pid.\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}"
exec "$command" recover "$tiny" -o "$work/out" --text "$work/text" --train mlp --teacher "$tiny" --steps 8 --batch 4 \
    --ctx 64 --lr 1e-3 --eval-every 2 --heldout 3 -t 1 --peer-timeout 120 "\$@"
END
cat >"$work/eval" <<END
echo \$\$ >"$work/pid.\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}"
exec "$command" eval "$tiny" --text "$tiny/calib.txt" --max-tokens 6000 --ctx 64 -t 1 --json --peer-timeout 120
END
steady() { sed 's/"seconds":[^,}]*//; s/"tok_s":[^,}]*//' "$1"; }
begin=$(now_ms)
mpirun -n $processes sh "$work/recover" >"$work/log" 2>&1 || { cat "$work/log"; fail "an undisturbed recover"; }
took_ms=$(($(now_ms) - begin))
mv "$work/out" "$work/want"
for i in $(seq "$kills"); do
    kill_one recover "$i"
    if [ -e "$work/out" ]; then # whole, where the kill came behind the last step
        cmp -s "$work/want/model.safetensors" "$work/out/model.safetensors" || fail "recover, kill $i left half an output"
    fi
    mpirun -n $processes sh "$work/recover" --resume >"$work/log" 2>&1 || { cat "$work/log"; fail "resume of kill $i"; }
    cmp -s "$work/want/model.safetensors" "$work/out/model.safetensors" || fail "recover, kill $i of rank $victim: other bytes"
done
echo "recover: $kills kills of $processes processes over $took_ms ms: the same bytes"

begin=$(now_ms)
mpirun -n $processes sh "$work/eval" >"$work/json" 2>"$work/err" || { cat "$work/err"; fail "an undisturbed eval"; }
took_ms=$(($(now_ms) - begin))
steady "$work/json" >"$work/want.json"
grep -q model_hash "$work/want.json" || fail "eval said nothing"
for i in $(seq "$kills"); do
    kill_one eval "$i"
    if grep model_hash "$work/log" >"$work/json"; then # the kill came behind the last step
        steady "$work/json" | cmp -s - "$work/want.json" || fail "eval, kill $i of rank $victim: half a result"
    fi
    after=$((1 << i % 3))
    mpirun -n $after sh "$work/eval" >"$work/json" 2>"$work/err" || { cat "$work/err"; fail "eval after kill $i on $after"; }
    steady "$work/json" | cmp -s - "$work/want.json" || fail "eval after kill $i on $after processes: other numbers"
done
echo "eval: $kills kills of $processes processes over $took_ms ms: the same numbers"
