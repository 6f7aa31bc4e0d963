#!/bin/sh
# A token of a model that processes share over a slow network, emulated between processes of one machine, beside what
# predict --cluster computes: within 20 %. Waits are long, so that those of this machine's scheduler do not count.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; exit 1; }
"$command" --version | grep -q '^  MPI *none' && { echo "SKIPPED: built without MPI: several processes are NOT tested"; exit 77; }
command -v mpirun >/dev/null || { echo "SKIPPED: no mpirun: several processes are NOT tested"; exit 77; }
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_tmpdir_base=$work
OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader,tcp
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_orte_tmpdir_base
export OMPI_MCA_rmaps_base_oversubscribe OMPI_MCA_hwloc_base_binding_policy OMPI_MCA_btl
tiny=$root/models/tiny
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
