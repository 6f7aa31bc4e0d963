#!/bin/sh
# What `make install` installs is enough to build and run the examples, shared with pkg-config alone and static with the CMake package, and
# exports the public functions only.
set -eu
command=$1
root=$2
build=$(dirname "$command")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; exit 1; }
tiny=$root/models/tiny

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/usr" # the tree may be moved
lib=$(dirname "$(dirname "$(find "$work/usr" -name neuronmlp.pc)")")
export PKG_CONFIG_PATH="$lib/pkgconfig"
for file in bin/neuronmlp share/man/man1/neuronmlp.1 share/man/man1/neuronmlp-compress.1 share/bash-completion/completions/neuronmlp \
    share/zsh/site-functions/_neuronmlp share/fish/vendor_completions.d/neuronmlp.fish; do
    [ -f "$work/usr/$file" ] || fail "$file is not installed"
done
"$work/usr/bin/neuronmlp" --version | grep -qF "$(pkg-config --modversion neuronmlp)" || fail "command and pkg-config differ in version"

# Declared with NMLP_API and exported are the same functions.
sed -n 's/^NMLP_API .*[ *]\(nmlp_[a-z_]*\)(.*/\1/p' "$work"/usr/include/neuronmlp/*.h | sort >"$work/declared"
nm -D --defined-only "$lib/libneuronmlp.so" | awk '$2 ~ /[TBDRVW]/ { sub(/@.*/, "", $3); print $3 }' | sort >"$work/exported"
[ "$(wc -l <"$work/declared")" -gt 10 ] || fail "declarations were not found"
diff "$work/declared" "$work/exported" || fail "declared (<) and exported (>) functions differ"
# No header names one that is not installed.
for header in $(sed -n 's/^#include "\(.*\)"$/\1/p' "$work"/usr/include/neuronmlp/*.h); do
    [ -f "$work/usr/include/$header" ] || fail "$header is included but not installed"
done

grep -q "VERSION_STRING \"$(pkg-config --modversion neuronmlp)\"" "$work/usr/include/neuronmlp/version.h" || fail "version.h differs"

static_flags="-Wl,-Bstatic -lneuronmlp -Wl,-Bdynamic $(pkg-config --static --libs neuronmlp)"
for source in "$root"/examples/*.c; do
    name=$(basename "$source" .c)
    # shellcheck disable=SC2046,SC2086
    cc -std=c11 -Wall -Wextra -Werror "$source" $(pkg-config --cflags --libs neuronmlp) -o "$work/$name"
done
# shellcheck disable=SC2046,SC2086
cc -std=c11 "$root/examples/generate.c" $(pkg-config --cflags neuronmlp) "-L$lib" $static_flags -o "$work/generate-pkg-static"
cmake -S "$root/examples" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/usr" >"$work/out" 2>&1 || fail "find_package: $(cat "$work/out")"
cmake --build "$work/cmake" >"$work/out" 2>&1 || fail "CMake package: $(tail -n 20 "$work/out")"
for source in "$root"/examples/*.c; do
    name=$(basename "$source" .c)
    ldd "$work/cmake/$name" | grep -q "$lib/libneuronmlp.so.0 " || fail "cmake/$name does not use the shared library"
    ldd "$work/cmake/$name-static" | grep -q libneuronmlp && fail "$name-static needs the shared library"
    cp "$work/cmake/$name-static" "$work/$name-static"
done
LD_LIBRARY_PATH=$lib
export LD_LIBRARY_PATH

for kind in "" -static -pkg-static; do
    # 32 tokens, the same text as the command's.
    "$work/generate$kind" "$tiny" "The old house" >"$work/out"
    "$command" run "$tiny" -p "The old house" -n 32 --device cpu 2>/dev/null | diff - "$work/out" || fail "generate$kind says something else"
    "$work/generate$kind" /no/such x >"$work/out" 2>"$work/err" && fail "a missing model was accepted"
    grep -q "/no/such" "$work/err" || fail "generate$kind: $(cat "$work/err")"
done

# models/tiny with its special tokens under ChatML's names is a chat model: the same answer as the command's, streamed, with statistics.
mkdir "$work/chatty"
cp "$tiny/config.json" "$tiny/model.safetensors" "$work/chatty/"
sed 's/<|begin_of_text|>/<|im_start|>/g; s/<|end_of_text|>/<|im_end|>/g' "$tiny/tokenizer.json" >"$work/chatty/tokenizer.json"
"$command" run "$work/chatty" --chat --system "Answer in one sentence." -p "Where is the house?" --device cpu --json >"$work/json" 2>"$work/err"
for kind in "" -static; do
    "$work/chat$kind" "$work/chatty" "Where is the house?" cpu >"$work/out"
    tokens=$(sed 's/.*"generated_tokens":\([0-9]*\).*/\1/' "$work/json")
    prompt=$(sed 's/.*"prompt_tokens":\([0-9]*\).*/\1/' "$work/json")
    tail -n 1 "$work/out" | grep -q "^$prompt prompt tokens, [0-9]* ms to the first; $tokens generated at [0-9.]* tokens/s" || fail "chat$kind: $(tail -n 1 "$work/out")"
    sed '$d' "$work/out" | python3 -c 'import json, sys; want = json.load(open(sys.argv[1]))["text"]; got = sys.stdin.read()[:-1]; sys.exit(got != want)' "$work/json" ||
        fail "chat$kind says something else than the command: $(cat "$work/out")"
    "$work/chat$kind" "$work/chatty" x tpu >"$work/out" 2>"$work/err" && fail "a device tpu was accepted"
    grep -q "^device is \"tpu\"" "$work/err" || fail "chat$kind: $(cat "$work/err")"
done

for kind in "" -static; do
    # The same choices as the command: the same tiling, time and source but for the line that says how to print it again.
    "$work/plan_simulate$kind" trn2 256 512 128 1024 >"$work/kernel.py" 2>"$work/figures"
    "$command" plan --target trn2 --op xuv --shape 256,512,128,1024 --json >"$work/plan.json"
    tiling=$(sed 's/.*"tiling":"\([^"]*\)".*/\1/' "$work/plan.json")
    latency=$(sed 's/.*"tiling":[^}]*"latency_us":\([0-9.]*\).*"runner_up.*/\1/' "$work/plan.json")
    grep -qxF "tiling $tiling" "$work/figures" || fail "plan_simulate$kind: $(cat "$work/figures")"
    grep -qF "$(printf '%.1f us simulated' "$latency")" "$work/figures" || fail "latency is not $latency: $(cat "$work/figures")"
    "$command" emit --target trn2 --kernel xuv --shape 256,512,128,1024 | sed '/neuronmlp emit/d; s/; to print it again:/./' >"$work/emitted.py"
    diff "$work/emitted.py" "$work/kernel.py" || fail "plan_simulate$kind prints another kernel"
    "$work/plan_simulate$kind" trn9 1 1 1 1 >"$work/out" 2>"$work/err" && fail "trn9 was accepted"
    grep -q trn9 "$work/err" || fail "plan_simulate$kind: $(cat "$work/err")"
done

# The same bytes and figures as the command's with the same options.
"$work/compress" "$tiny" "$work/c" 0.4 >"$work/out" 2>"$work/err"
"$command" compress "$tiny" -o "$work/cc" --ratio 0.4 --calib-tokens 2048 --heldout 512 --json >"$work/json" 2>"$work/err"
cmp "$work/c/model.safetensors" "$work/cc/model.safetensors" || fail "compress and the command write other weights"
params=$("$command" info "$work/c" --json | sed 's/.*"mlp_params":\([0-9]*\).*/\1/')
grep -qx "MLP parameters 3145728 -> $params" "$work/out" || fail "compress: $(cat "$work/out"), expected $params"
ppl=$(sed 's/.*"ppl":\([0-9.]*\).*/\1/' "$work/json")
grep -q "$(printf ' -> %.2f$' "$ppl")" "$work/out" || fail "compress: $(cat "$work/out"), expected perplexity $ppl"
for kind in "" -static; do
    "$work/compress$kind" "$tiny" "$work/x" 1.5 >"$work/out" 2>"$work/err" && fail "a ratio of 1.5 was accepted"
    grep -q "1.5" "$work/err" || fail "compress$kind: $(cat "$work/err")"
done
[ ! -e "$work/x" ] || fail "a refused compression wrote something"
# Cancelled by a signal soon after it began: its own exit code, no output.
: >"$work/err" # the shell empties it only when the command begins
"$work/compress" "$tiny" "$work/x" 0.4 >"$work/out" 2>"$work/err" &
running=$!
while ! grep -q "%" "$work/err"; do sleep 0.05; done
kill -INT $running
status=0
wait $running || status=$?
[ "$status" -eq 3 ] || fail "a cancelled compression ends with $status: $(cat "$work/err")"
[ ! -e "$work/x" ] || fail "a cancelled compression wrote something"
echo "install: ok"
