#!/bin/sh
# plan, predict and the simulated benchmarks as a user drives them: figures that agree with each other and with the
# simulator, the cache, the committed tables, and errors that say what to do.
set -eu
nmlp=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
number() { sed -n "s/^{[^{]*\"$1\":\([-+0-9.e]*\).*/\1/p" "$2"; } # of the outermost object, before any inner one
text() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$2"; }
holds() { awk "BEGIN { exit !($1) }" || fail "$2: not $1"; }
parses() { command -v python3 >/dev/null || return 0; python3 -m json.tool <"$1" >/dev/null || fail "$1 is no JSON"; }
refuses() { # exit code, part of the message, arguments
    code=0
    want=$1 part=$2
    shift 2
    "$nmlp" "$@" >"$dir/out" 2>"$dir/err" || code=$?
    [ "$code" = "$want" ] || fail "$*: exit $code, expected $want"
    grep -q -- "$part" "$dir/err" || fail "$*: \"$part\" not in: $(cat "$dir/err")"
}

# plan: the tiling it names, given to the simulator, takes that time and computes the right values
shape=48,512,128,1000
for target in trn1 trn2 trn3; do
    "$nmlp" plan --target $target --op mlp --shape $shape --json >"$dir/p.json"
    parses "$dir/p.json"
    us=$(number latency_us "$dir/p.json") limit=$(number limit_us "$dir/p.json") over=$(number over_limit "$dir/p.json")
    paper=$(sed -n 's/.*"paper":{[^}]*"latency_us":\([0-9.e]*\).*/\1/p' "$dir/p.json")
    [ "$(text target "$dir/p.json")" = $target ] || fail "plan: wrong target"
    grep -q '"simulated":true' "$dir/p.json" || fail "plan does not say that it is simulated"
    holds "$us >= $limit && $us <= $paper" "plan on $target"
    holds "($us / $limit - $over)^2 < 1e-8" "over_limit on $target"
    "$nmlp" simulate --target $target --kernel mlp --shape $shape --tiling "$(text tiling "$dir/p.json")" --check --json >"$dir/s.json"
    holds "($(number latency_us "$dir/s.json") / $us - 1)^2 < 1e-8" "simulate and plan on $target"
    error=$(sed -n 's/.*"max_rel_err":\([0-9.e+-]*\).*/\1/p' "$dir/s.json")
    holds "$error > 0 && $error < 0.02" "values of the plan on $target"
done

# plan: same question, same answer; the cache remembers it
without_time() { sed 's/"seconds":[^,}]*//' "$1"; }
"$nmlp" plan --target trn3 --op mlp --shape $shape --json >"$dir/q.json"
[ "$(without_time "$dir/p.json")" = "$(without_time "$dir/q.json")" ] || fail "two plans differ"
"$nmlp" plan --target trn3 --op mlp --shape $shape --cache "$dir/plans" --json >"$dir/c1.json"
"$nmlp" plan --target trn3 --op mlp --shape $shape --cache "$dir/plans" --json >"$dir/c2.json"
grep -q '"cached":false' "$dir/c1.json" || fail "cached before it was asked"
grep -q '"cached":true' "$dir/c2.json" || fail "not cached"
grep -q '"judged":2,' "$dir/c2.json" || fail "the cache saves no simulation"
[ "$(text tiling "$dir/c2.json")" = "$(text tiling "$dir/q.json")" ] || fail "the cache changes the answer"
[ "$(number latency_us "$dir/c2.json")" = "$(number latency_us "$dir/q.json")" ] || fail "the cache changes the time"
"$nmlp" plan --target trn1 --op xuv --shape 256,512,128,700 >"$dir/out"
for part in simulated winner runner-up paper "why: the" "Busiest engine"; do
    grep -q "$part" "$dir/out" || fail "plan does not print \"$part\""
done

refuses 2 "--target, --op and --shape" plan --target trn1 --op mlp
refuses 2 "expected xw, xuv or mlp" plan --target trn1 --op matmul --shape 1,2,3,4
refuses 2 "has 3 numbers" plan --target trn1 --op mlp --shape 1,2,3
refuses 2 "must be 1 to" plan --target trn1 --op xuv --shape 1,2,0,4
refuses 2 "no-such-chip" plan --target no-such-chip --op mlp --shape 1,2,3,4
refuses 2 "expected bf16, fp16 or fp32" plan --target trn1 --op mlp --shape 1,2,3,4 --dtype int8
refuses 2 "no tiling key" plan --target trn1 --op mlp --shape 1,256,128,256 --tiling depth=3
refuses 2 "outside 1..1024" plan --target trn1 --op mlp --shape 1,256,128,256 --tiling ring=0
refuses 2 "turn=3 is outside 0..2" plan --target trn1 --op mlp --shape 1,256,128,256 --tiling turn=3
refuses 1 "turn an mlp of up to 128 rows" plan --target trn1 --op mlp --shape 300,256,128,256 --tiling turn=1
refuses 1 "turn an mlp" plan --target trn1 --op xw --shape 1,256,256 --tiling turn=1
refuses 1 "SBUF" plan --target trn1 --op mlp --shape 512,1000000,0,1000000
refuses 2 "nonsense" plan --nonsense

# predict: whose kernels; ours are never slower, and a batch makes more tokens at the price of a longer step
for kernels in ours paper aws; do
    "$nmlp" predict "$root/models/tiny" --target trn1 --ratio 0.5 --prompt 64 --generate 8 --mlp $kernels --json >"$dir/$kernels.json"
    parses "$dir/$kernels.json"
done
for kernels in paper aws; do
    holds "$(number e2e_ms "$dir/ours.json") <= $(number e2e_ms "$dir/$kernels.json")" "ours against $kernels"
done
"$nmlp" predict "$root/models/tiny" --target trn1 --ratio 0.5 --prompt 64 --generate 8 --batch 4 --json >"$dir/batch.json"
holds "$(number tokens_per_s "$dir/batch.json") > $(number tokens_per_s "$dir/ours.json")" "throughput of a batch"
holds "$(number tpot_ms "$dir/batch.json") >= $(number tpot_ms "$dir/ours.json")" "step of a batch"
refuses 2 "expected ours, paper or aws" predict "$root/models/tiny" --target trn1 --mlp theirs
refuses 2 "batch" predict "$root/models/tiny" --target trn1 --batch 0

# predict: the parts add up
"$nmlp" predict "$root/models/tiny" --target trn2 --ratio 0.5 --prompt 64 --generate 8 --json >"$dir/t.json"
parses "$dir/t.json"
ttft=$(number ttft_ms "$dir/t.json") tpot=$(number tpot_ms "$dir/t.json") e2e=$(number e2e_ms "$dir/t.json")
holds "($ttft + 7 * $tpot - $e2e)^2 < 1e-12 * $e2e^2" "TTFT and TPOT"
part_sum() { # of prefill or decode of the compressed model, us
    sed -n "s/^{[^{]*\"breakdown\":{.*\"$1\":{\([^}]*\)}.*\"speedup\".*/\1/p" "$dir/t.json" | tr ',' '\n' |
        awk -F: '{ sum += $2 } END { printf "%.9g", sum }'
}
holds "($(part_sum prefill) / 1000 / $ttft - 1)^2 < 1e-8" "parts of the prefill"
holds "($(part_sum decode) / 1000 / $tpot - 1)^2 < 1e-8" "parts of a token"
"$nmlp" predict llama-3.2-1b --target trn1 --ratio 0.5 --prompt 128 --generate 16 --cache "$dir/plans" --json >"$dir/l.json"
speedup=$(sed -n 's/.*"speedup":\([0-9.]*\).*/\1/p' "$dir/l.json")
holds "$speedup > 1 && $speedup < 2" "speed-up of llama-3.2-1b at ratio 0.5"
"$nmlp" predict llama-3.2-1b --target trn1 --ratio 0.5 --prompt 128 --generate 16 --tp 2 --cache "$dir/plans" --json >"$dir/l2.json"
grep -qE '"split":"(width|rank)"' "$dir/l2.json" && grep -q '"slices":{' "$dir/l2.json" || fail "predict --tp names no split"
holds "$(number e2e_ms "$dir/l2.json") < $(number e2e_ms "$dir/l.json")" "two cores against one"
grep -q '"all_reduce_us":0[,}]' "$dir/l.json" || fail "one core reduces"
"$nmlp" predict "$root/models/tiny" --target trn2 --prompt 8 --generate 1 | grep -q simulated || fail "predict does not say simulated"

refuses 2 "--target is needed" predict llama-3.2-1b
refuses 2 "no-such-model" predict no-such-model --target trn1
refuses 2 "--ratio is 1" predict llama-3.2-1b --target trn1 --ratio 1
refuses 2 "--prompt 0" predict llama-3.2-1b --target trn1 --prompt 0
refuses 2 "a device of trn1 has 2 cores" predict llama-3.2-1b --target trn1 --tp 3

# bench: the tables in docs are what the commands give
"$nmlp" bench neuron-ablation -o "$dir" >"$dir/out"
cmp -s "$dir/neuron-ablation-trn1.csv" "$root/docs/neuron-ablation-trn1.csv" || fail "docs/neuron-ablation-trn1.csv is not what bench gives"
"$nmlp" bench neuron-ablation -o "$dir" --json >"$dir/a.json"
parses "$dir/a.json"
"$nmlp" bench neuron-mlp --target trn2 --model qwen3-1.7b -o "$dir" --json >"$dir/m.json"
parses "$dir/m.json"
grep qwen3-1.7b "$root/docs/neuron-mlp-trn2.csv" >"$dir/committed"
sed 1d "$dir/neuron-mlp-trn2.csv" | cmp -s - "$dir/committed" || fail "docs/neuron-mlp-trn2.csv is not what bench gives"
[ "$(number shapes "$dir/m.json")" = 21 ] || fail "bench neuron-mlp: not 21 shapes"
[ "$(number within_1.06 "$dir/m.json")" = 21 ] || fail "bench neuron-mlp: a shape misses its bound"
[ "$(number slower_than_paper "$dir/m.json")" = 0 ] || fail "bench neuron-mlp: slower than the paper's kernel"

refuses 2 "no benchmark" bench nothing
refuses 2 "no-such-chip" bench neuron --target no-such-chip -o "$dir"
refuses 2 "qwen3-4b" bench neuron-mlp --model gpt-2 -o "$dir"
refuses 1 "no-such-folder" bench neuron-ablation -o "$dir/no-such-folder"
refuses 2 "--out" bench neuron-ablation --csv "$dir/x.csv"
refuses 2 "--csv" bench peak -o "$dir"
echo "plan: ok"
