#!/bin/sh
# neuronmlp report as typed: what is on the page, that it is one file and safe, what is refused;
# with NMLP_TEST_BROWSER set, also the page in a browser.
. "$2/tests/lib/cli.sh"
refused() { # exit code, words in the message, arguments
    code=0
    want=$1
    words=$2
    shift 2
    "$command" report "$@" -o "$work/refused.html" >"$work/out" 2>"$work/err" || code=$?
    [ $code -eq "$want" ] || { cat "$work/err"; fail "$*: exit $code, expected $want"; }
    grep -qF -e "$words" "$work/err" || { cat "$work/err"; fail "$*: message without \"$words\""; }
    [ ! -e "$work/refused.html" ] || fail "$*: left a file behind"
}

# A folder whose name would be markup, if names became markup.
evil="$work/<script>alert(1)<!-- & \"q\" 'a'"
few="--calib-tokens 1024 --heldout 512 --ctx 128 --alloc uniform --recover none"
"$command" compress "$root/models/tiny" -o "$evil" --ratio 0.4 $few >/dev/null 2>"$work/err" || { cat "$work/err"; fail "compress"; }
"$command" compress "$root/models/tiny" -o "$work/svd" --ratio 0.4 $few --whiten none --weights none >/dev/null 2>&1
has "$evil/config.json" '"made_by":"neuronmlp compress '
grep -q '"made_by":"[^"]*-o' "$evil/config.json" && fail "made_by names the output"
"$command" eval "$evil" --text "$root/models/tiny/calib.txt" --max-tokens 600 --ctx 128 --json >"$work/eval.json" 2>/dev/null
"$command" eval "$root/models/tiny" --text "$root/models/tiny/calib.txt" --max-tokens 600 --ctx 128 --json >"$work/dense.json" 2>/dev/null
cat >"$work/mlp.csv" <<'CSV'
# bench mlp --rows 1,128 <made up>
by,hidden,inner,rank,rows,threads,samples,ms,ms_p10,ms_p90,rate,unit,of_probe,of_probe_p10,of_probe_p90
avx2,2048,8192,1280,1,2,17,10,9,16,6.8,GB/s,0.2,0.1,0.3
<b>rival</b>,2048,8192,1280,1,2,17,22,18,25,6.9,GB/s,0.2,0.2,0.3
avx2,2048,8192,dense,1,2,11,15,12,20,6.5,GB/s,0.2,0.1,0.3
avx2,2048,8192,1280,128,2,3,140,133,148,71.7,GFLOP/s,0.2,0.2,0.2
CSV
page=$work/page.html
"$command" report "$evil" "$work/svd" -o "$page" --bench "$work/mlp.csv" --eval "$work/eval.json,$work/dense.json" --rows-max 2048 --json \
    >"$work/json" 2>"$work/err" || { cat "$work/err"; fail "report"; }
for key in file bytes sections charts; do has "$work/json" "\"$key\""; done
has "$work/json" '"sections":6' # the last says what else there is
# 1 of ranks, 3 of curves, 1 of quality, 2 of the CPU, 4 of kernels, the timeline
has "$work/json" '"charts":12'
for id in compression quality cpu timeline kernels; do has "$page" "<section id=\"$id\">"; done
has "$page" "1.50×" # 15 ms dense over 10 ms at rank 1280
has "$page" "37.50 %" # rank 128 of [1024,256] everywhere
has "$page" "&lt;b&gt;rival&lt;/b&gt;"
has "$page" "bench mlp --rows 1,128 &lt;made up&gt;"
grep -q '<script>alert\|<b>rival\|<made' "$page" && fail "a name became markup"
grep -oE '(src|href)="[^"#]*"|url\([^)]*\)|@import[^;]*' "$page" | grep -v '^href="data:,"$' && fail "the page refers to something outside"
grep -qE 'https?://' "$page" && fail "the page has an address in it"

# Alone it is about Trainium, and says how to get the rest.
"$command" report -o "$work/alone.html" --rows-max 2048 --kernel xuv --shape 512,1024,256,2048 --target trn2 >"$work/out"
has "$work/out" "3 sections"
has "$work/alone.html" "Not in this report"
has "$work/alone.html" "neuronmlp simulate --target trn2 --kernel xuv --shape 512,1024,256,2048"

# Nothing stands where a peer was not timed.
printf 'by,hidden,inner,rank,rows,threads,samples,ms,ms_p10,ms_p90\navx2,64,160,dense,1,1,3,9,8,10\navx2,64,160,24,1,1,3,4,3,5\nbad,64,160,24,1,1,0,,,\n' >"$work/by.csv"
"$command" report -o "$work/by.html" --rows-max 2048 --bench "$work/by.csv" >"$work/out"
has "$work/by.html" "2.25×" # 9 ms over 4 ms
grep -q 'bad' "$work/by.html" && fail "a peer that was not timed has a bar"

# What was measured elsewhere, a package and the paper's tables: a section each, words as words.
cat >"$work/model.csv" <<'CSV'
# bench model <made up>
model,phase,tok_s,tok_s_p10,tok_s_p90
"/m/<i>a, b",decode,10,9,11
"/m/<i>a, b",decode x8,72.5,70,73
/m/q8,decode x8,140,139,141
/m/q8,prefill 128,448,430,450
CSV
printf 'model,batch,prompt,prefill_tok_s,prefill_tok_s_p10,prefill_tok_s_p90,decode_tok_s,decode_tok_s_p10,decode_tok_s_p90\nm,1,16,50,40,60,7,6,8\nm,4,16,90,80,99,21,20,22\n' >"$work/requests.csv"
cat >"$work/serve.log" <<'LOG'
listening <on> a port
{"path":"/v1/completions","status":200,"ms":100,"prompt_tokens":7,"cached_tokens":3,"generated_tokens":5,"ttft_ms":10,"tpot_ms":2}
{"path":"/v1/completions","status":200,"ms":300,"prompt_tokens":7,"cached_tokens":0,"generated_tokens":5,"ttft_ms":30,"tpot_ms":4}
{"path":"/v1/completions","status":503,"ms":1,"prompt_tokens":0,"cached_tokens":0,"generated_tokens":0}
{"path":"/health","status":200,"ms":0}
{"path":"/v1/comp
LOG
cat >"$work/paper.json" <<'JSON'
{"tables":[{"id":"made-up","title":"A <table>","words":"Nothing of this was ever published, and it is not long.","rows_are":"rows","unit":"ms","decimals":1,"log":false,
"rows":[{"label":"1 <b>","cells":[{"column":"theirs","origin":"published","value":12.34},{"column":"ours","origin":"not possible here"}]}]}]}
JSON
"$command" emit --model "$root/models/tiny" --target trn2 -o "$work/package" >/dev/null 2>&1
all=$work/all.html
"$command" report -o "$all" --rows-max 2048 --bench "$work/mlp.csv,$work/model.csv" --serve-log "$work/serve.log" --package "$work/package" \
    --paper "$work/paper.json" >"$work/out"
for id in cpu throughput serving package made-up; do has "$all" "<section id=\"$id\">"; done
for words in "140 tok/s" "generated by q8 with 8 sequences together" "&lt;i&gt;a, b" "bench model &lt;made up&gt;" \
    "2 answers, 1 requests failed; 14 tokens read, of which 3 were known" "20 ms" "for trn2" "A &lt;table&gt;" "12.3 published" "1 &lt;b&gt;"; do
    has "$all" "$words"
done
grep -q '<i>a\|<made\|A <table>\|1 <b>' "$all" && fail "a name became markup"
"$command" report -o "$work/requests.html" --rows-max 2048 --bench "$work/requests.csv" >/dev/null
has "$work/requests.html" "21 tok/s"
refused 2 "is the second file of" --bench "$work/model.csv,$work/requests.csv"
sed 's/decode x8/dance/' "$work/model.csv" >"$work/dance.csv"
refused 1 'dance.csv:4: phase is "dance"' --bench "$work/dance.csv"
refused 1 "no line of an answered request" --serve-log "$work/mlp.csv"
refused 1 "manifest.json" --package "$work/svd"
sed 's/"form":[0-9]*/"form":99/' "$work/package/manifest.json" >"$work/svd/manifest.json"
refused 1 '"form"' --package "$work/svd"
rm "$work/svd/manifest.json"
refused 1 'has no "tables"' --paper "$work/eval.json"
sed 's/"value":12.34/"value":"much"/' "$work/paper.json" >"$work/words.json"
refused 1 '"value"' --paper "$work/words.json"

refused 2 "is a dense checkpoint" "$root/models/tiny"
refused 1 "config.json" "$work/nothing"
refused 1 "no.csv" --bench "$work/no.csv"
printf 'by,hidden\n' >"$work/bad.csv"
refused 1 'no column "inner"' --bench "$work/bad.csv"
sed 's/,10,9,/,ten,9,/' "$work/mlp.csv" >"$work/word.csv"
refused 1 'word.csv:3: ms is "ten"' --bench "$work/word.csv"
refused 1 "no.json" --eval "$work/no.json"
refused 2 "xtuv-fused" --kernel nothing
refused 2 "4 numbers" --kernel xw-opt --shape 1,2,3,4
refused 2 "rows-max" --rows-max 100
refused 2 "llama-3.2-1b" --preset nothing
refused 2 "unknown option" --nothing

export PYTHONDONTWRITEBYTECODE=1
python=""
for candidate in ${PYTHON:-} python3 /usr/bin/python3; do
    if "$candidate" -c 'import numpy' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: no python3 with NumPy (Debian: python3-numpy); error curves were NOT compared" >&2
    exit 77
fi
# A checkpoint of an earlier version recorded neither errors nor perplexities: the page does without them.
"$python" - "$work/svd/config.json" "$work/old.json" <<'PYTHON'
import json, sys
config = json.load(open(sys.argv[1]))
for key in ("error", "error_curve_step", "error_curve", "heldout", "made_by"):
    del config["neuronmlp"][key]
json.dump(config, open(sys.argv[2], "w"))
PYTHON
cp -r "$work/svd" "$work/old"
mv "$work/old.json" "$work/old/config.json"
"$command" report "$work/old" -o "$work/old.html" --rows-max 2048 >"$work/out" || fail "a checkpoint without errors"
has "$work/out" "4 sections" # no quality
has "$work/old.html" "neuronmlp info $work/old"
grep -q '[^a-z]nan[^a-z]' "$work/old.html" && fail "nan on the page"

"$python" "$root/tests/report/check_curve.py" "$root/models/tiny" "$work/svd" || fail "error curves"
# More instructions than are drawn one by one.
"$command" report -o "$work/long.html" --rows-max 2048 --kernel xuv-naive --shape 2048,8192,4096,8192 >"$work/out"
has "$work/long.html" "Only the first are drawn one by one"

if [ -n "${NMLP_TEST_BROWSER:-}" ]; then
    if ! command -v chromium >/dev/null; then
        echo "SKIPPED: no chromium (Debian: chromium); the page was NOT opened in a browser" >&2
        exit 77
    fi
    "$python" "$root/tests/report/check_page.py" "$page" 12 || fail "the page in a browser"
    "$python" "$root/tests/report/check_page.py" "$work/long.html" 5 || fail "a long kernel in a browser"
    "$python" "$root/tests/report/check_page.py" "$all" 12 || fail "the page with all sections in a browser"
    "$python" "$root/tests/report/check_page.py" "$work/alone.html" 5 || fail "the page without a model in a browser"
fi
echo "report: ok"
