#!/bin/sh
# A token of a model that processes share over a slow network, emulated between processes of one machine, beside what
# predict --cluster computes: within 20 %. Waits are long, so that late wake-ups do not count.
. "$2/tests/lib/mpi.sh"
for network in "2 20000 100" "2 20000 0.01" "4 20000 100" "4 20000 0.01"; do
    # shellcheck disable=SC2086
    set -- $network
    mpirun -n "$1" "$command" bench model "$tiny" --rounds 1 -t 1 --network-us "$2" --network-gbit "$3" --csv "$work/csv" \
        >"$work/out" 2>"$work/err" || { cat "$work/err"; fail "bench model on $1 processes"; }
    measured=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i } $at["phase"] == "decode" { print 1000 / $at["tok_s"] }' "$work/csv")
    predicted=$("$command" predict "$tiny" --cluster "nodes=$1,latency_us=$2,gbit=$3,read_gbs=100" --prompt 64 --generate 1 |
        awk -v n="$1" '$1 == n { print $2 }')
    echo "$1 processes, $2 us, $3 Gbit/s: $measured ms a token, predicted $predicted"
    awk "BEGIN { exit !($measured < 1.2 * $predicted && $measured > 0.8 * $predicted) }" || fail "not within 20 %"
done
