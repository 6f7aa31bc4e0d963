#!/bin/sh
# fit: numbers that made a table come back from it; what it cannot tell is left, or refused when asked for; bad tables are refused by line.
set -eu
nmlp=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
refuses() { # exit code, part of the message, arguments
    code=0
    want=$1 part=$2
    shift 2
    "$nmlp" "$@" >"$dir/out" 2>"$dir/err" || code=$?
    [ "$code" = "$want" ] || fail "$*: exit $code, expected $want"
    grep -q -- "$part" "$dir/err" || fail "$*: \"$part\" not in: $(cat "$dir/err")"
}
table=$root/tests/data/measured_example.csv
"$nmlp" fit "$table" --target trn1 -o "$dir/m" --json >"$dir/json"
for key in file target measurements outliers parameters error_before error_after seconds; do
    grep -q "\"$key\":" "$dir/json" || fail "no $key in the JSON"
done
# the numbers the example was made with
for pair in tensor_sustained=0.80 dma_bytes_per_ns=15 dma_small_bytes_per_ns=5.6 launch_us=14; do
    awk -v key="${pair%=*}" -v want="${pair#*=}" '$1 == key { found = 1; off = $2 / want - 1; exit !(off < 0.01 && off > -0.01 && $3 == "[measured]") } END { if (!found) exit 1 }' "$dir/m" ||
        fail "$pair did not come back: $(grep "^${pair%=*} " "$dir/m")"
done
grep -q '^dma_start_ns *1300 *\[documented\]' "$dir/m" || fail "a number the times do not show was changed"
"$nmlp" simulate --target "$dir/m" --kernel xw-opt --shape 512,512,512 >/dev/null || fail "the fitted machine cannot be used"

refuses 2 "scalar_table_load_ns" fit "$table" --target trn1 --keys scalar_table_load_ns -o "$dir/new"
refuses 2 "is no number of a machine file" fit "$table" --target trn1 --keys nonsense -o "$dir/new"
printf 'kernel,s,h,o\nxw,1,2,3\n' >"$dir/bad"
refuses 1 'no column "us"' fit "$dir/bad" --target trn1 -o "$dir/new"
printf 'kernel,s,h,o,us\nxw-opt,512,512,512,fast\n' >"$dir/bad"
refuses 1 ':2: column "us"' fit "$dir/bad" --target trn1 -o "$dir/new"
printf 'kernel,s,h,o,us\nno-such,512,512,512,10\n' >"$dir/bad"
refuses 2 ':2: the kernel cannot be built' fit "$dir/bad" --target trn1 -o "$dir/new"
printf 'kernel,s,h,o,us\n' >"$dir/bad"
refuses 1 "no measurements" fit "$dir/bad" --target trn1 -o "$dir/new"
refuses 2 "needed" fit "$table" --target trn1
[ ! -e "$dir/new" ] || fail "something was written by a refused command"
