#!/bin/sh
# Factorised MLPs shared by processes in each way there is: the logits of one process, and a word on what was chosen.
. "$2/tests/lib/mpi.sh"

ids=558,717,894,12,99,3,4,77
numbers() { sed 's/.*"logits":\[\([^"]*\)\],"argmax".*/\1/; s/[][]//g' "$1" | tr , '\n'; }
shrink() { # output, more
    out=$1
    shift
    "$command" compress "$tiny" -o "$work/$out" --ratio 0.4 --calib-tokens 256 --heldout 64 --ctx 64 --rounds 0 "$@" \
        >/dev/null 2>"$work/err" || { cat "$work/err"; fail "compress"; }
    "$command" logits "$work/$out" --ids $ids --positions 2,7 -t 1 --json >"$work/one"
    numbers "$work/one" >"$work/$out.numbers"
}
check() { # model, processes, split
    mpirun -n "$2" "$command" logits "$work/$1" --ids $ids --positions 2,7 -t 1 --json --split "$3" >"$work/several" 2>"$work/err" ||
        { cat "$work/err"; fail "$3 on $2 processes"; }
    numbers "$work/several" | paste "$work/$1.numbers" - | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d
        m = $1 < 0 ? -$1 : $1; if (m > most) most = m }
        END { if (NR < 8192 || !(worst <= 1e-5 * most)) { print NR " numbers, off by " worst " of " most; exit 1 } }' ||
        fail "$3 on $2 processes differs"
}
shrink factors
shrink slices --shards 4
for n in 2 4; do
    for split in dense replicated all; do check factors $n $split; done
    check slices $n auto
done

# What was chosen is said: in words on stderr and in JSON.
mpirun -n 2 "$command" run "$work/factors" -p "The old house" -n 2 -t 1 --split all >/dev/null 2>"$work/err"
grep -q '^\[2 processes: .*[1-4] layers all.*a wait takes .* ms a token computed\]' "$work/err" || { cat "$work/err"; fail "no word on the split"; }
mpirun -n 4 "$command" run "$work/slices" -p "The old house" -n 2 -t 1 --json >"$work/out" 2>"$work/err"
grep -q '"split":".*[1-4] layers slices' "$work/out" || { cat "$work/out"; fail "no word on slices"; }

"$command" logits "$work/factors" --ids 1 --split all >"$work/out" 2>"$work/err" && fail "one process took a split"
has "$work/err" "--split needs several processes"
timeout 60 mpirun -n 2 "$command" logits "$work/factors" --ids 1 --split slices >"$work/out" 2>"$work/err" && fail "slices of whole matrices"
[ "$(grep -c '^neuronmlp.*--split is "slices"' "$work/err")" -eq 1 ] || { cat "$work/err"; fail "no word on the wrong split"; }

# Messages through shared memory are those of MPI, to the byte, whichever is faster.
for n in 2 4; do
    mpirun -n $n "$command" bench cluster --json >"$work/out" 2>"$work/err" || { cat "$work/err"; fail "bench cluster"; }
    [ "$(grep -o '"same_bytes":"yes"' "$work/out" | wc -l)" -eq 7 ] || { cat "$work/out"; fail "messages differ"; }
done
"$command" bench cluster >"$work/out" 2>"$work/err" && fail "messages of one process"
has "$work/err" "mpirun -n N"
echo "cluster_split: ok"
