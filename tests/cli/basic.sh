#!/bin/sh
# The commands of the foundation as a user types them, on the built-in model.
. "$2/tests/lib/cli.sh"
fail() {
    echo "FAILED: $1" >&2
    exit 1
}
contains() { # text, part, name
    case "$1" in *"$2"*) ;; *) fail "$3: \"$2\" not in: $1" ;; esac
}


# info
out=$("$command" info "$tiny" --json)
for part in '"family":"qwen3"' '"hidden":256' '"intermediate":1024' '"layers":4' '"mlp_dense":12' '"mlp_lowrank":0'; do
    contains "$out" "$part" info
done
contains "$("$command" info "$tiny")" "6.0" "info text"

# The same greedy text as Hugging Face transformers gives for this prompt (tiny was trained for this project).
prompt="The old house stood at the end of the lane, and"
want=' the old man, who had been standing by the fire, looked at the old man with a look of awe and awe, and said, \"I am not going to be married to-night'
out=$("$command" run "$tiny" -p "$prompt" -n 40 --device cpu --precision f32 --json)
contains "$out" "\"text\":\"$want\"" "greedy text"
contains "$out" '"prompt_tokens":12' "prompt tokens"
for threads in 1 3; do
    again=$("$command" run "$tiny" -p "$prompt" -n 20 --temp 0.9 --top-p 0.9 --seed 5 --threads $threads --json | sed 's/"prompt_tokens.*//')
    [ -z "${sampled:-}" ] || [ "$again" = "$sampled" ] || fail "sampling depends on the thread count"
    sampled=$again
done
printf '%s' "$prompt" >"$work/prompt.txt"
# Special tokens spelled in a prompt are tokens, as in tokenize; --no-special makes them text. In a text that is scored
# it is the other way round.
for flag in "" --no-special; do
    ids=$("$command" tokenize "$tiny" -p "a<|end_of_text|>b" $flag --json | sed 's/.*"ids":\[\([0-9,]*\)\].*/\1/' | tr ',' '\n' | wc -l)
    out=$("$command" run "$tiny" -p "a<|end_of_text|>b" -n 1 $flag --json)
    contains "$out" "\"prompt_tokens\":$ids," "prompt tokens of run $flag"
    [ -n "$flag" ] || special=$ids
done
[ "$ids" -gt "$special" ] || fail "--no-special changes nothing"
printf 'a<|end_of_text|>b and some more text' >"$work/special.txt"
plain=$("$command" eval "$tiny" --text "$work/special.txt" --json | sed 's/.*"tokens":\([0-9]*\).*/\1/')
spelt=$("$command" eval "$tiny" --text "$work/special.txt" --special --json | sed 's/.*"tokens":\([0-9]*\).*/\1/')
[ "$plain" -gt "$spelt" ] || fail "eval --special does not read special tokens"
fromfile=$("$command" run "$tiny" -f "$work/prompt.txt" -n 5 --json | sed 's/"prompt_tokens.*//')
frompar=$("$command" run "$tiny" -p "$prompt" -n 5 --json | sed 's/"prompt_tokens.*//')
[ "$fromfile" = "$frompar" ] || fail "-f and -p differ"
fromstdin=$(printf '%s' "$prompt" | "$command" run "$tiny" -f - -n 5 --json | sed 's/"prompt_tokens.*//')
[ "$fromstdin" = "$frompar" ] || fail "-f - and -p differ"

# token ids in, token ids out: no tokenizer is needed
mkdir "$work/ids"
for file in config.json model.safetensors; do ln -s "$tiny/$file" "$work/ids/$file"; done
ids=$("$command" run "$work/ids" --ids 558,717,894 -n 4 --device cpu 2>/dev/null) || fail "run --ids without a tokenizer"
[ "$(echo "$ids" | wc -w)" -eq 4 ] || fail "run --ids printed: $ids"
same=$("$command" run "$tiny" --ids 558,717,894 -n 4 --device cpu --json 2>/dev/null | sed 's/.*"ids":\[\([^]]*\)\].*/\1/' | tr ',' ' ')
[ "$(echo $ids)" = "$same" ] || fail "run --ids printed $ids, with --json $same"

# a draft changes no token of greedy text
plain=$("$command" run "$tiny" -p "$prompt" -n 30 --device cpu --precision f32 --json | sed 's/"prompt_tokens.*//')
drafted=$("$command" run "$tiny" -p "$prompt" -n 30 --device cpu --precision f32 --draft "$tiny" --json)
[ "$(echo "$drafted" | sed 's/"prompt_tokens.*//')" = "$plain" ] || fail "run --draft: another text"
case $drafted in *'"draft_proposed":'*'"draft_accepted":'*) ;; *) fail "run --draft: no statistics";; esac

# streaming prints prompt and text on stdout, figures on stderr
out=$("$command" run "$tiny" -p "The sea" -n 4 2>"$work/err")
contains "$out" "The sea" "streamed prompt"
contains "$(cat "$work/err")" "tokens" "figures"

# tokenize and back
ids=$("$command" tokenize "$tiny" -p "hello world")
text=$("$command" tokenize "$tiny" --decode "$(echo "$ids" | tr ' ' ',')")
[ "$text" = "hello world" ] || fail "round trip: $text"

# logits
out=$("$command" logits "$tiny" --ids 558,717 --positions 1 --json)
contains "$out" '"positions":[1]' logits
contains "$out" '"argmax":[' logits

# usage errors end with 2, failures with 1
set +e
"$command" nonsense >/dev/null 2>&1
[ $? -eq 2 ] || fail "unknown command"
"$command" run "$tiny" >/dev/null 2>&1
[ $? -eq 2 ] || fail "missing prompt"
"$command" run "$tiny" -p x --temp abc >/dev/null 2>&1
[ $? -eq 2 ] || fail "bad number"
"$command" run "$tiny" -p x --no-such-flag >/dev/null 2>&1
[ $? -eq 2 ] || fail "unknown flag"
"$command" synth nothing -o "$work/x" >/dev/null 2>&1
[ $? -eq 2 ] || fail "unknown preset"
"$command" >/dev/null 2>&1
[ $? -eq 2 ] || fail "no command"
"$command" --version | grep -q '^neuronmlp [0-9]' || fail version
exit 0
