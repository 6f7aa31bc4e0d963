# The beginning of tests with several processes: . "$2/tests/lib/mpi.sh"
# As cli.sh; ends in 77 where there is no MPI. More processes than CPUs are fine, and so is root.
. "$2/tests/lib/cli.sh"
"$command" --version | grep -q '^  MPI *none' && { echo "SKIPPED: built without MPI: several processes are NOT tested"; exit 77; }
command -v mpirun >/dev/null || { echo "SKIPPED: no mpirun: several processes are NOT tested"; exit 77; }
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_tmpdir_base=$work
OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader,tcp
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_orte_tmpdir_base
export OMPI_MCA_rmaps_base_oversubscribe OMPI_MCA_hwloc_base_binding_policy OMPI_MCA_btl

# Open MPI 4.1 on a busy machine now and then takes a process that ended well for one that did not, and says that its
# PID is 0. Then once more.
mpirun() {
    for mpi_attempt in 1 2 3; do
        mpi_code=0
        command mpirun "$@" >"$work/mpirun.out" 2>"$work/mpirun.err" || mpi_code=$?
        grep -q "with PID 0 on" "$work/mpirun.err" || break
    done
    cat "$work/mpirun.out"
    cat "$work/mpirun.err" >&2
    return $mpi_code
}

now_ms() { date +%s%3N; }

# Runs $work/NAME on $processes, and kills a rank ($victim) in the middle of part $2 of $kills of the $took_ms that an
# undisturbed job took; its code in $code. A job that was over by then is run again and killed earlier: the machine was
# busier when it was timed.
kill_one() { # NAME, number of the kill
    victim=$(($2 * 7 % processes))
    for kill_attempt in 1 2 3 4; do
        rm -rf "$work"/out* "$work"/pid.*
        timeout 300 mpirun -n "$processes" sh "$work/$1" >"$work/log" 2>&1 &
        job=$!
        sleep "$(awk "BEGIN { print $took_ms * (2 * $2 - 1) / ($kills * 2000) }")"
        [ -s "$work/pid.$victim" ] && kill -9 "$(cat "$work/pid.$victim")" 2>/dev/null || true
        code=0
        wait $job || code=$?
        [ $code -ne 124 ] || fail "$1, kill $2 of rank $victim: the job hangs"
        if [ $code -ne 0 ]; then return 0; fi
        took_ms=$((took_ms * 3 / 4))
    done
    fail "$1, kill $2: $kill_attempt jobs were over before it"
}

# A small random model of a family, with a tokenizer of letters, in $work.
small_model() { # family
    cp -r "$root/tests/data/families/$1" "$work/$1"
    awk 'BEGIN { printf "{\"added_tokens\":[],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},\
\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{"
        for (i = 0; i < 26; i++) printf "%s\"%c\":%d", i ? "," : "", 97 + i, i + 3; print "}}}" }' >"$work/$1/tokenizer.json"
    tr -cd a-z <"$tiny/calib.txt" | head -c 2000 >"$work/$1/calib.txt"
}
