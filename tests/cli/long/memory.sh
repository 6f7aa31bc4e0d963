#!/bin/sh
# What a command says it needs, before it takes it, beside what it then takes: never more than that, and not far less.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny
fail() { echo "FAILED: $1"; exit 1; }
head -c 20000 "$tiny/calib.txt" >"$work/text"
calib="--calib $work/text --calib-tokens 256 --heldout 64 --ctx 64"
"$command" compress "$tiny" -o "$work/c" --ratio 0.3 $calib --rounds 0 --alloc uniform --recover none >/dev/null 2>&1

# compared NAME MORE WORDS…: need <= peak <= 2 need + 40 MB; --memory MORE suffices for what comes before (tokenizer, threads)
compared() {
    name=$1 more=$2 status=0
    shift 2
    rm -rf "$work/out"
    "$command" "$@" --memory "$more" >/dev/null 2>"$work/err" || status=$?
    need=$(sed -n 's/.*needs about \([0-9]*\) bytes in all, [0-9]* are available.*/\1/p' "$work/err")
    [ "$status" -eq 1 ] && [ -n "$need" ] || { cat "$work/err"; fail "$name in $more bytes: exit $status, no need is named"; }
    [ ! -e "$work/out" ] && [ ! -e "$work/out.partial" ] || fail "$name: an output in spite of the refusal"
    peak=$(python3 -c 'import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
print(1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if done == 0 else -1)' "$command" "$@")
    printf '%-10s needs %4d MB, took %4d MB\n' "$name" $((need / 1000000)) $((peak / 1000000))
    [ "$peak" -ge "$need" ] || fail "$name says it needs $need bytes, and took $peak"
    [ "$peak" -le $((2 * need + 40000000)) ] || fail "$name says it needs $need bytes only, and took $peak"
}
compared run 11000000 run "$tiny" -p hello -n 4 -t 1 --device cpu
compared logits 11000000 logits "$tiny" --ids 1,2,3 -t 1
compared eval 11000000 eval "$tiny" --text "$work/text" --max-tokens 512 -t 1
compared "bench model" 11000000 bench model "$tiny" -t 1
# shellcheck disable=SC2086
compared compress 30000000 compress "$tiny" -o "$work/out" --ratio 0.3 $calib --rounds 0 --alloc uniform -t 1
# shellcheck disable=SC2086
compared quantize 30000000 quantize "$tiny" -o "$work/out" --format q4 $calib -t 1
compared recover 30000000 recover "$work/c" -o "$work/out" --text "$work/text" --teacher "$tiny" --steps 1 --batch 1 --ctx 32 --heldout 1 --explore 0 -t 1
compared "emit" 9000000 emit --target trn2 --model "$work/c" --buckets 1 -o "$work/out" -t 1
# shellcheck disable=SC2086
compared optimize 30000000 optimize "$tiny" -o "$work/out" --for trn1 --max-loss 50% $calib --verify 64 -t 1
# A server needs what all its slots can hold.
status=0
"$command" serve "$tiny" --port 0 --slots 64 --ctx 512 --memory 60000000 -t 1 >/dev/null 2>"$work/err" || status=$?
[ "$status" -eq 1 ] && grep -q "needs about [0-9]* bytes in all" "$work/err" || { cat "$work/err"; fail "serve: exit $status"; }
echo "memory: ok"
