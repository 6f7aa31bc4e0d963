#!/bin/sh
# eval end to end on the built-in model: the keys of the JSON, the formats of a suite, resume, and what is refused.
. "$2/tests/lib/cli.sh"

has() { # has FILE KEY...
    file=$1
    shift
    for key in "$@"; do
        grep -q "\"$key\":" "$file" || { echo "FAILED: no \"$key\" in: $(cut -c1-600 "$file")"; exit 1; }
    done
}

refused() { # refused STATUS PART COMMAND...
    want=$1
    part=$2
    shift 2
    status=0
    "$command" "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -eq "$want" ] || { echo "FAILED: exit $status, $want expected: $*"; cat "$work/err"; exit 1; }
    grep -qF -- "$part" "$work/err" || { echo "FAILED: \"$part\" not in: $(cat "$work/err")"; exit 1; }
}

"$command" eval "$tiny" --text "$tiny/calib.txt" --max-tokens 600 --json >"$work/ppl.json" 2>"$work/err"
has "$work/ppl.json" tokens nll ppl word_ppl bits_per_byte protocol model_hash tokenizer_hash version
[ ! -s "$work/err" ] || { echo "FAILED: --json is not quiet"; exit 1; }
"$command" eval "$tiny" --text "$tiny/calib.txt" --preset wikitext2 --max-tokens 600 2>"$work/err" >"$work/out"
grep -q 'wikitext2: .*windows of 512 tokens, no overlap' "$work/err" || { echo "FAILED: the preset is not printed"; exit 1; }

head -c 6000 "$tiny/calib.txt" >"$work/a.txt"
tail -c 6000 "$tiny/calib.txt" >"$work/b.txt"
"$command" eval "$tiny" "$work/a.txt" "$work/b.txt" --kl "$tiny" --ctx 128 --json >"$work/kl.json" 2>"$work/err"
has "$work/kl.json" kl nll nll_reference same_top bits_per_weight texts protocol
grep -q '"same_top":1[,}]' "$work/kl.json" || { echo "FAILED: a model differs from itself"; exit 1; }
refused 2 'texts: MODEL TEXT' eval "$tiny" --kl "$tiny"
refused 2 'no --text' eval "$tiny" "$work/a.txt" --text "$work/a.txt" --kl "$tiny"

data=$work/data
mkdir "$data"
cat >"$data/openbookqa_test.jsonl" <<'ROWS'
{"id": "a", "question": "The cat sat on", "choices": ["the mat", "of of", "xq"], "gold": 0}
{"id": "b", "question": "He went", "choices": ["home", "qqqq"], "gold": 0}
ROWS
head -c 4000 "$tiny/calib.txt" >"$data/ptb.test.txt"
"$command" eval "$tiny" --task openbookqa --data "$data/openbookqa_test.jsonl" --json >"$work/task.json"
has "$work/task.json" task n acc acc_norm acc_stderr pred pred_norm loglik protocol model_hash tokenizer_hash version
grep -q '"n":2,' "$work/task.json"
"$command" eval "$tiny" --task openbookqa --data "$data/openbookqa_test.jsonl" --limit 1 --json | grep -q '"n":1,'

"$command" eval "$tiny" "$tiny" --suite paper --data-dir "$data" --resume "$work/state.json" >"$work/first"
"$command" eval "$tiny" "$tiny" --suite paper --data-dir "$data" --resume "$work/state.json" >"$work/second"
cmp "$work/first" "$work/second"
grep -q '^piqa: skipped' "$work/first"
grep -q '^mean  *acc ' "$work/first"
for format in markdown csv json; do
    "$command" eval "$tiny" --suite paper --data-dir "$data" --resume "$work/state.json" --format $format >"$work/$format"
done
grep -q '^| openbookqa | acc |' "$work/markdown"
grep -q '^openbookqa,acc,' "$work/csv"
has "$work/json" suite models mean_acc model_hash

printf '{"question":"q","choices":["a","b"],"gold":9}\n' >"$work/bad.jsonl"
refused 1 "bad.jsonl: line 1: key \"gold\" is 9" eval "$tiny" --task piqa --data "$work/bad.jsonl"
refused 2 "--task nosuch: unknown" eval "$tiny" --task nosuch --data "$work/bad.jsonl"
refused 1 "/no/such" eval "$tiny" --text /no/such
refused 1 "--ctx is 100000" eval "$tiny" --text "$tiny/calib.txt" --ctx 100000
refused 2 "one of --text" eval "$tiny"
refused 2 "--limit does not go with --text" eval "$tiny" --text "$tiny/calib.txt" --limit 3
refused 2 "--stride does not go with --task" eval "$tiny" --task piqa --data "$work/bad.jsonl" --stride 8
refused 2 "--data FILE" eval "$tiny" --task piqa
refused 2 "--data-dir" eval "$tiny" --suite paper
refused 2 "--preset xyz" eval "$tiny" --text x --preset xyz
refused 2 "--suite only" eval "$tiny" "$tiny" --text x
