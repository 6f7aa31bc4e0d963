#!/bin/sh
# Limits of memory, address space, files and disks; files that change while they are read: an answer or a line that says why not, never
# a signal and never half an output.
. "$2/tests/lib/cli.sh"
# within LIMIT COMMAND…: exit 0 or 1 under `ulimit LIMIT`, with a message on 1
within() {
    limit=$1 status=0
    shift
    (
        # shellcheck disable=SC2086
        ulimit $limit
        exec timeout 60 "$command" "$@"
    ) >/dev/null 2>"$work/err" || status=$?
    case $status in
        0) ;;
        1) [ -s "$work/err" ] || fail "ulimit $limit, $*: no message" ;;
        127) grep -q "error while loading shared libraries\|cannot allocate memory" "$work/err" || fail "ulimit $limit, $*: exit 127" ;;
        *) cat "$work/err"; fail "ulimit $limit, $*: exit $status" ;;
    esac
    tried=$((tried + 1))
}
tried=0
head -c 20000 "$tiny/calib.txt" >"$work/text"
compress="compress $tiny -o $work/out --ratio 0.3 --calib $work/text --calib-tokens 128 --heldout 64 --ctx 64 --rounds 0 --alloc uniform -t 2"

# --memory: a number, refused where it does not suffice, without effect where it does.
"$command" run "$tiny" -p hello -n 4 --temp 0 >"$work/want" 2>/dev/null
"$command" run "$tiny" -p hello -n 4 --temp 0 --memory 2000000000 >"$work/got" 2>/dev/null || fail "2 GB do not suffice"
cmp "$work/want" "$work/got" || fail "--memory changes the result"
status=0
"$command" run "$tiny" -p hello -n 4 --memory 4000000 >/dev/null 2>"$work/err" || status=$?
[ "$status" -eq 1 ] || fail "--memory 4000000: exit $status"
grep -q "memory.*[0-9] bytes" "$work/err" || { cat "$work/err"; fail "no number of bytes"; }
status=0
"$command" run "$tiny" -p hello --memory -5 2>"$work/err" || status=$?
[ "$status" -eq 2 ] || fail "--memory -5: exit $status"
status=0
timeout 60 "$command" $compress --memory 100000000 >/dev/null 2>"$work/err" || status=$?
[ "$status" -eq 1 ] || { cat "$work/err"; fail "compress in 100 MB: exit $status"; }
[ ! -e "$work/out" ] || fail "an output in spite of the error"

# What a command needs and does not get is said in bytes.
short_of() {
    bytes=$1 status=0
    shift
    timeout 60 "$command" "$@" --memory "$bytes" >/dev/null 2>"$work/err" || status=$?
    [ "$status" -eq 1 ] || { cat "$work/err"; fail "$1 in $bytes bytes: exit $status"; }
    grep -q "[0-9] bytes" "$work/err" || { cat "$work/err"; fail "$1 in $bytes bytes: no number"; }
    [ ! -e "$work/out" ] || fail "$1: an output in spite of the error"
    tried=$((tried + 1))
}
short_of 30000000 eval "$tiny" --text "$work/text" -t 1
short_of 30000000 quantize "$tiny" -o "$work/out" --format q4 --calib "$work/text" --calib-tokens 64 --heldout 0 --ctx 64 -t 1
short_of 30000000 recover "$tiny" -o "$work/out" --text "$work/text" --train mlp --steps 1 --batch 1 --ctx 32 --heldout 1 -t 1
short_of 1500000 plan --target trn1 --op mlp --shape 512,1024,0,2048 -t 1

# A tokenizer that cannot be held is refused with what it needs, whichever command reads it, and that is not more than it takes.
need=0
for bytes in 1000000 2000000 3000000 4000000; do
    for words in "tokenize $tiny -p hello" "run $tiny -p hello -n 2" "eval $tiny --text $work/text"; do
        # shellcheck disable=SC2086
        short_of $bytes $words
        need=$(sed -n 's/.*tokenizer.json: out of memory: the tokenizer needs at least \([0-9]*\) bytes, [0-9]* are available.*/\1/p' "$work/err")
        [ "${need:-0}" -gt "$bytes" ] || { cat "$work/err"; fail "$words in $bytes bytes: what the tokenizer needs is not named"; }
    done
done
holds=0
for bytes in $need $((need + need / 10)) $((need + need / 5)) $((need + need / 2)); do
    status=0
    "$command" tokenize "$tiny" -p hello --memory "$bytes" >/dev/null 2>"$work/err" || status=$?
    case $status in
        0) holds=$bytes ;;
        1) grep -q "out of memory: the tokenizer needs .* [0-9]* bytes" "$work/err" || { cat "$work/err"; fail "$bytes bytes: no number"; } ;;
        *) fail "tokenize in $bytes bytes: exit $status" ;;
    esac
done
[ "$holds" -gt 0 ] || fail "half as much again as it says it needs is not enough for the tokenizer"

# Address space, data, descriptors.
for kb in 60000 200000 400000; do
    within "-v $kb" info "$tiny"
    within "-v $kb" run "$tiny" -p hello -n 2 -t 2
    # shellcheck disable=SC2086
    within "-v $kb" $compress
done
for n in 3 5 8; do
    within "-n $n" info "$tiny"
    within "-n $n" run "$tiny" -p hello -n 2
    rm -rf "$work/out"
    # shellcheck disable=SC2086
    within "-n $n" $compress
    [ ! -e "$work/out" ] || "$command" info "$work/out" >/dev/null || fail "half an output with $n descriptors"
done

# Places where nothing can be written.
for place in /proc/nmlp /sys/nmlp /dev/null/x; do
    status=0
    "$command" expand "$tiny" -o "$place" >/dev/null 2>"$work/err" || status=$?
    [ "$status" -eq 1 ] || fail "$place: exit $status"
done

# A file system that takes nothing.
mkdir "$work/disk"
if mount -t tmpfs -o size=1m,ro tmpfs "$work/disk" 2>/dev/null; then
    for words in "expand $tiny -o $work/disk/x" "plan --target trn1 --op xw --shape 128,128,128 --cache $work/disk/x" \
        "emit --target trn1 --kernel xw-tiled --shape 128,128,128 -o $work/disk/x" "export $tiny -o $work/disk/x"; do
        status=0
        # shellcheck disable=SC2086
        "$command" $words >/dev/null 2>"$work/err" || status=$?
        [ "$status" -eq 1 ] && grep -q "Read-only file system" "$work/err" || { cat "$work/err"; fail "$words: exit $status"; }
    done
    umount "$work/disk"
fi

# A disk that fills up while an output is written: an error, nothing half-written, and room again.
if mount -t tmpfs -o size=8m tmpfs "$work/disk" 2>/dev/null; then
    for words in "expand $tiny -o $work/disk/x" "export $tiny -o $work/disk/x" "synth llama-3.2-1b --layers 1 -o $work/disk/x"; do
        status=0
        # shellcheck disable=SC2086
        timeout 60 "$command" $words >/dev/null 2>"$work/err" || status=$?
        [ "$status" -eq 1 ] && grep -q "No space left" "$work/err" || { cat "$work/err"; fail "$words on a full disk: exit $status"; }
        [ -z "$(ls -A "$work/disk")" ] || { ls -A "$work/disk"; fail "$words leaves something on a full disk"; }
    done
    umount "$work/disk"
else
    echo "SKIPPED: no file system can be mounted; full and read-only disks were NOT tried" >&2
fi

# A control group that leaves less memory than is needed: refused with the number, not killed by the kernel.
own=$(sed -n 's/^[0-9]*:memory:\(.*\)/memory\1/p; s/^0::\(.*\)/\1/p' /proc/self/cgroup | head -n 1)
group=/sys/fs/cgroup/${own#/}/neuronmlp-test-$$
in_group() {
    bytes=$1 status=0
    shift
    echo "$bytes" >"$limit_file"
    (echo 0 >"$group/cgroup.procs" && exec timeout 60 "$command" "$@") >"$work/got" 2>"$work/err" || status=$?
}
limit_file=/dev/null
if mkdir "$group" 2>/dev/null; then
    for name in memory.limit_in_bytes memory.max; do [ ! -f "$group/$name" ] || limit_file=$group/$name; done
fi
if [ "$limit_file" = /dev/null ]; then
    rmdir "$group" 2>/dev/null || true
    echo "SKIPPED: no control group with a limit of memory can be made here (root is needed); one was NOT tried" >&2
else
    trap 'rmdir "$group" 2>/dev/null || true; rm -rf "$work"' EXIT
    rm -rf "$work/out"
    in_group 10000000 run "$tiny" -p hello -n 4 --temp 0 -t 1
    [ "$status" -eq 1 ] && grep -q "needs about [0-9]* bytes in all" "$work/err" || { cat "$work/err"; fail "run in a group of 10 MB: exit $status"; }
    # shellcheck disable=SC2086
    in_group 35000000 $compress
    [ "$status" -eq 1 ] && grep -q "needs about [0-9]* bytes in all" "$work/err" || { cat "$work/err"; fail "compress in a group of 35 MB: exit $status"; }
    [ ! -e "$work/out" ] || fail "an output in spite of the error"
    in_group 300000000 run "$tiny" -p hello -n 4 --temp 0 -t 1
    [ "$status" -eq 0 ] && cmp "$work/want" "$work/got" || { cat "$work/err"; fail "run in a group of 300 MB: exit $status"; }
    tried=$((tried + 3))
    rmdir "$group"
fi

# A model that goes away: its folder removed while it is mapped changes nothing, and one that never was is named.
cp -r "$tiny" "$work/gone"
"$command" run "$work/gone" -p hello -n 200 --temp 0 --ctx 256 >"$work/got" 2>"$work/err" &
pid=$!
sleep 0.1
rm -rf "$work/gone"
status=0
wait "$pid" || status=$?
[ "$status" -eq 0 ] || { [ "$status" -eq 1 ] && grep -q "gone" "$work/err"; } || { cat "$work/err"; fail "a model that went away: exit $status"; }

# Weights cut short while they are read.
cp -r "$tiny" "$work/m"
"$command" compress "$work/m" -o "$work/cut" --ratio 0.3 --calib "$work/text" --calib-tokens 512 --heldout 128 --ctx 64 >/dev/null 2>"$work/err" &
pid=$!
tries=0
until [ -e "$work/cut.work.partial" ] || [ "$tries" -gt 1000 ]; do sleep 0.01; tries=$((tries + 1)); done
truncate -s 4096 "$work/m/model.safetensors"
status=0
wait "$pid" || status=$?
[ "$status" -eq 1 ] || { cat "$work/err"; fail "weights cut short: exit $status"; }
grep -q "model.safetensors: was cut short" "$work/err" || { cat "$work/err"; fail "no word on the file that was cut short"; }
[ ! -e "$work/cut" ] || fail "half an output"
echo "ok: $tried runs under limits"
