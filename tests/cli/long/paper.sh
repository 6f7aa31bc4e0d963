#!/bin/sh
# paper: all tables within five minutes, a picture for each, every cell with an origin, figures that are published and known.
set -eu
nmlp=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
begin=$(date +%s)
"$nmlp" paper --html "$dir/page.html" --json >"$dir/json"
seconds=$(($(date +%s) - begin))
[ $seconds -lt 300 ] || fail "took $seconds s, expected less than 300"
tables=$(grep -o '"id":' "$dir/json" | wc -l)
[ "$tables" = 12 ] || fail "$tables tables, expected 12"
pictures=$(grep -o '<svg' "$dir/page.html" | wc -l)
[ "$pictures" -ge "$tables" ] || fail "$pictures pictures for $tables tables"
cells=$(grep -o '"column":' "$dir/json" | wc -l)
origins=$(grep -oE '"origin":"(measured|simulated|published|not possible here)"' "$dir/json" | wc -l)
[ "$cells" = "$origins" ] || fail "$cells cells, $origins origins"
for figure in 27.63 72 1.35 2.22 186.9 117.2 35.81 1300.1 26.1; do
    grep -q "\"origin\":\"published\",\"value\":$figure[},]" "$dir/json" || fail "published $figure is missing"
done
for model in llama-3.2-1b llama-3.2-3b llama-3.1-8b qwen3-1.7b qwen3-4b qwen3-8b; do
    grep -q "\"label\":\"$model, 0.2, 2048 + 512\"" "$dir/json" || fail "no row of $model"
done
[ -f "$root/tests/data/published.csv" ]
