#!/bin/sh
# The benchmarks of this CPU as a user types them, on sizes that take a moment.
. "$2/tests/lib/cli.sh"
fail() {
    echo "FAILED: $1" >&2
    exit 1
}
contains() { # text, part, name
    case "$1" in *"$2"*) ;; *) fail "$3: \"$2\" not in: $1" ;; esac
}

# mlp: a dense row and one per rank for every number of rows, with the plan; CSV and SVG say the same
out=$("$command" bench mlp --shape 64,160,24,40 --rows 1,33 --seconds 0.01 --isa ref --csv "$work/m.csv" --svg "$work/m.svg" --json)
for part in '"benchmark":"mlp"' '"rank":"dense"' '"rank":"24"' '"rank":"40"' '"unit":"GB/s"' '"unit":"GFLOP/s"' 'set=ref'; do
    contains "$out" "$part" "bench mlp"
done
[ "$(wc -l <"$work/m.csv")" = 7 ] || fail "bench mlp: CSV has $(wc -l <"$work/m.csv") lines, expected 7"
ideal=$(awk -F, 'NR == 3 { print $21 }' "$work/m.csv")
[ "$ideal" = 1.90 ] || fail "bench mlp: ideal speed-up $ideal, expected 64*160/(24*(64+160)) = 1.90"
contains "$(cat "$work/m.svg")" "<svg" "bench mlp chart"

# model: the model beside itself is as fast as itself, about
out=$("$command" bench model "$root/models/tiny" "$root/models/tiny" --rounds 1 --csv "$work/t.csv" --json)
contains "$out" '"ideal":1' "bench model"
contains "$out" '"peak_rss_bytes":' "bench model"
[ "$(grep -c ",decode," "$work/t.csv")" = 2 ] || fail "bench model: two decode lines expected"

# several sequences at once, device by name
out=$("$command" bench model "$root/models/tiny" --rounds 1 --device cpu --batch 1,3 --csv "$work/b.csv" --json)
contains "$out" '"phase":"decode x3"' "bench model --batch"
[ "$(grep -c ",decode" "$work/b.csv")" = 2 ] || fail "bench model --batch: two decode lines expected"
if "$command" bench model "$root/models/tiny" --batch 1,65 2>"$work/err"; then fail "a batch of 65 was taken"; fi
contains "$(cat "$work/err")" "--batch: 65" "large batch"
if "$command" bench model "$root/models/tiny" --device tpu 2>"$work/err"; then fail "a tpu was taken"; fi
contains "$(cat "$work/err")" "--device is \"tpu\"" "unknown device"

# another program's results beside ours: columns at the end, a bar of its own
printf 'model_type,n_threads,n_prompt,n_gen,avg_ts\n"llama",1,128,0,1000\n"llama",1,0,64,50\n' >"$work/peer.csv"
"$command" bench model "$root/models/tiny" --rounds 1 --threads 1 --peer "$work/peer.csv" --csv "$work/p.csv" --svg "$work/p.svg" >/dev/null
contains "$(head -1 "$work/p.csv")" ",peer_tok_s,vs_peer,peer_test" "bench model --peer"
contains "$(grep ',prefill 128,' "$work/p.csv")" ",1000.00," "bench model --peer: prefill"
contains "$(grep ',decode,' "$work/p.csv")" "llama tg64 t1" "bench model --peer: decode"
contains "$(cat "$work/p.svg")" "peer" "bench model --peer: chart"
printf '{"pp": 16, "tg": 8, "pl": 2, "speed_pp": 900.0, "speed_tg": 100.0}\n' >"$work/peer.jsonl"
out=$("$command" bench model "$root/models/tiny" --rounds 1 --batch 1,2 --prompt 16 --generate 8 --peer "$work/peer.jsonl" --svg "$work/r.svg" --json)
contains "$out" '"peer_decode_tok_s":100' "bench model --peer: requests"
contains "$out" '"peer_decode_tok_s":null' "bench model --peer: what it did not measure"
contains "$(cat "$work/r.svg")" "Generated tokens" "bench model: chart of requests"
# Shares of what the CPU can do, a median between its 10th and 90th percentile.
"$command" bench model "$root/models/tiny" --rounds 3 --batch 1,2 --prompt 16 --generate 8 --csv "$work/s.csv" >/dev/null
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    !($at["prefill_share"] > 0) || !($at["decode_share_p10"] <= $at["decode_share"] && $at["decode_share"] <= $at["decode_share_p90"]) { exit 1 }
    { n++ } END { exit n != 2 }' "$work/s.csv" || fail "bench model: no shares of the probes in $(cat "$work/s.csv")"
if "$command" bench model "$root/models/tiny" --peer "$work/m.csv" 2>"$work/err"; then fail "a strange peer file was taken"; fi
contains "$(cat "$work/err")" "n_prompt" "strange peer file"

# peak
contains "$("$command" bench peak --threads 1)" "read_dram" "bench peak"

# what it cannot do, it says
if "$command" bench mlp --shape 64 2>"$work/err"; then fail "a shape of one number was taken"; fi
contains "$(cat "$work/err")" "--shape" "bad shape"
if "$command" bench model 2>"$work/err"; then fail "no model was taken"; fi
contains "$(cat "$work/err")" "model director" "no model"
if "$command" bench peak models/tiny 2>"$work/err"; then fail "peak took a model"; fi
if "$command" bench nothing 2>"$work/err"; then fail "an unknown benchmark was taken"; fi
contains "$(cat "$work/err")" "there is no benchmark" "unknown benchmark"

# Options of a network that nothing would use are refused.
for words in "--network-us -3" "--network-gbit 1"; do
    code=0
    # shellcheck disable=SC2086
    "$command" bench model "$tiny" --rounds 1 $words >/dev/null 2>"$work/err" || code=$?
    [ "$code" -eq 2 ] && grep -q network "$work/err" || fail "accepted: $words"
done
