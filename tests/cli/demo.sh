#!/bin/sh
# The demo from beginning to end: plain text when piped, a command above every result, a report. Quick, unless NMLP_DEMO=full.
. "$2/tests/lib/cli.sh"
fail() { echo "FAILED: $1"; cat "$work/out"; exit 1; }
cd "$root"
quick=--quick tokens=512
[ "${NMLP_DEMO:-}" != full ] || quick="" tokens=8192
# shellcheck disable=SC2086
sh scripts/demo $quick "$command" models/tiny >"$work/out" 2>"$work/err" || { cat "$work/err"; fail "exit"; }

esc=$(printf '\033')
grep -q "$esc" "$work/out" && fail "colours in a pipe"
for step in 1 2 3 4 5 6 7; do grep -q "^$step  " "$work/out" || fail "no step $step"; done
[ "$(grep -c '^  perplexity, dense and compressed *[0-9.]*  ->  [0-9.]*   with [0-9.]* % of' "$work/out")" -eq 2 ] || fail "not two ratios"
[ "$(grep -c '^  rows: [0-9]*, our kernels, median *dense [0-9.]* ms, fused low rank [0-9.]* ms: [0-9.]*x$' "$work/out")" -eq 2 ] || fail "no CPU times"
grep -q '^  planned, low rank, fused *2[0-9.]* us (simulated): 1\.[0-9]*x' "$work/out" || fail "no planned time"
[ "$(grep -c '^  .* perplexity *[-+][0-9.]* %, [0-9.]*x as fast, *[0-9]* % of the bytes' "$work/out")" -ge 2 ] || fail "no forms to choose from"
[ "$(grep -c '  <- written$' "$work/out")" -eq 1 ] || fail "no form was written"
sed -n '/^  it answers/{n;p}' "$work/out" | grep -q 'The old house stood at the end of the lane' || fail "no answer over HTTP"
grep -q '^  what a Trainium host needs *[1-9][0-9]* kernels, [0-9.]* MB' "$work/out" || fail "no package"
[ "$(sed -n '/^Summary/,/^With a/p' "$work/out" | grep -c '\./neuronmlp')" -eq 4 ] || fail "no summary with commands"
[ "$(sed -n '/^With a model of your own/,$p' "$work/out" | grep -c '^  \./neuronmlp')" -eq 4 ] || fail "not four commands for an own model"
# Commands as printed can be pasted: the cheap ones are.
ln -s "$command" "$work/neuronmlp"
sed -n 's/^  \$ \.\///p' "$work/out" | grep -E '^neuronmlp (info|plan|simulate|run) ' >"$work/commands"
[ "$(wc -l <"$work/commands")" -eq 5 ] || fail "not five commands to try"
PATH=$work:$PATH sh -e "$work/commands" >/dev/null 2>"$work/err" || { cat "$work/err"; fail "a command as printed"; }
report=$(sed -n 's/^  open in a browser *//p' "$work/out")
grep -q '<section id="cpu">' "$report" || fail "the report lacks the CPU"
grep -q 'neuronmlp compress models/tiny --ratio 0.20 --calib-tokens '"$tokens" "$report" || fail "the report lacks the compression's command"
echo "demo: ok"
