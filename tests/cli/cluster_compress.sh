#!/bin/sh
# compress under mpirun: the bytes of one process, from the beginning and from what another number of processes left.
. "$2/tests/lib/mpi.sh"

shrink() { # processes, output, more
    n=$1 out=$2
    shift 2
    set -- compress "$tiny" -o "$work/$out" --ratio 0.4 --calib-tokens 640 --heldout 256 --ctx 64 --rounds 0 -t 1 "$@"
    if [ "$n" = 1 ]; then "$command" "$@"; else mpirun -n "$n" "$command" "$@"; fi >"$work/out" 2>"$work/err" ||
        { cat "$work/err"; fail "compress on $n processes"; }
}
same() { diff -r "$work/one" "$work/$1" >"$work/diff" || { head -c 500 "$work/diff"; fail "$2"; }; }
shrink 1 one
shrink 2 two --json
same two "2 processes write another checkpoint"
[ "$(grep -c params_after "$work/out")" -eq 1 ] || { cat "$work/out"; fail "not one report of two processes"; }
ls -A "$work" | grep -q partial && fail "a work folder was left"

# Four processes with a work folder that stays; some files of each kind go; two go on.
shrink 4 four --work "$work/files"
same four "4 processes write another checkpoint"
rm "$work/files.partial/layer-00002.nested" "$work/files.partial/ranks" "$work/files.partial/layer-00003.refit"
shrink 2 resumed --work "$work/files" --resume
same resumed "what 4 processes began and 2 finished is another checkpoint"
shrink 1 alone --work "$work/files" --resume
same alone "what 4 processes began and 1 finished is another checkpoint"

# Ranks and bits for a number of bytes, and the two other answers beside: files and numbers of one process.
small_model llama
spend() { # processes, output
    n=$1
    set -- compress "$work/llama" -o "$work/$2" --budget-bytes 45000 --tile 4 --calib-tokens 448 --heldout 192 --ctx 64 -t 1 --json
    if [ "$n" = 1 ]; then "$command" "$@"; else mpirun -n "$n" "$command" "$@"; fi >"$work/out" 2>"$work/err" ||
        { cat "$work/err"; fail "compress --budget-bytes on $n processes"; }
    sed 's/"output":[^,]*,//; s/"seconds":[^,}]*//g; s/"peak_rss_bytes":[^,}]*//' "$work/out" >"$work/json.$n"
}
rm -rf "$work/one"
spend 1 one
grep -q '"possible":false' "$work/json.1" && { cat "$work/json.1"; fail "not three answers"; }
for n in 2 4; do
    spend $n "bytes$n"
    same "bytes$n" "$n processes write another checkpoint within the same bytes"
    cmp -s "$work/json.1" "$work/json.$n" || { cat "$work/json.1" "$work/json.$n"; fail "$n processes have other numbers"; }
done

# What several processes do not do is said once, before the work.
for words in "--ratio 0.4 --recover train" "--ratio 1.4"; do
    # shellcheck disable=SC2086
    timeout 60 mpirun -n 2 "$command" compress "$tiny" -o "$work/no" $words >"$work/out" 2>"$work/err" && fail "accepted: $words"
    [ "$(grep -c '^neuronmlp' "$work/err")" -eq 1 ] || { cat "$work/err"; fail "not one message: $words"; }
done
