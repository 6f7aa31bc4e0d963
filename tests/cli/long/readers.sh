#!/bin/sh
# A folder that is replaced again and again: whoever opens it meanwhile sees one model or the other, whole.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
fail() { echo "FAILED: $1"; exit 1; }
head -c 20000 "$tiny/calib.txt" >"$work/text"
compress() {
    "$command" compress "$tiny" -o "$work/$1" --ratio "$2" --calib "$work/text" --calib-tokens 64 --heldout 0 --ctx 64 --rounds 0 --alloc uniform \
        --recover none >/dev/null 2>&1 || fail "compress"
}
compress a 0.3
compress b 0.6
cp -r "$work/a" "$work/old"
# What stands in the folder, without its name.
seen() { "$command" info "$1" --json | sed 's/"\(model\|path\|dir\)":"[^"]*"//'; }
seen "$work/a" >"$work/want.a"
seen "$work/b" >"$work/want.b"
cmp -s "$work/want.a" "$work/want.b" && fail "the two models look the same"
cp -r "$work/a" "$work/dir"
(
    i=0
    while [ "$i" -lt 60 ]; do
        "$command" recover "$work/$([ $((i % 2)) -eq 0 ] && echo b || echo a)" -o "$work/dir" --text "$work/text" --steps 1 --batch 1 --ctx 16 \
            --heldout 1 --lr 1e-9 --warmup 0 >/dev/null 2>"$work/err" || { cat "$work/err"; exit 1; }
        i=$((i + 1))
    done
) &
writer=$!
reads=0
while kill -0 "$writer" 2>/dev/null; do
    seen "$work/dir" >"$work/got" 2>"$work/err" || { cat "$work/err"; fail "a model that does not open"; }
    cmp -s "$work/got" "$work/want.a" || cmp -s "$work/got" "$work/want.b" || { cat "$work/got"; fail "half of one model, half of another"; }
    reads=$((reads + 1))
done
wait "$writer" || fail "the writer"
echo "ok: $reads reads during 60 replacements"
