#!/bin/sh
# docs/recipes: every line of every recipe works when pasted. What a machine lacks is replaced, and said: without a GPU cuda becomes cpu, lines
# for a Trainium instance are left out, the cluster's recipe is skipped without MPI. Work is made small: few tokens and steps.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; exit 1; }
mkdir "$work/bin"
ln -s "$command" "$work/bin/neuronmlp"
PATH=$work/bin:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PATH OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
cd "$root"
gpu=cuda
"$command" run models/tiny -p x -n 1 --device cuda >/dev/null 2>&1 || { gpu=cpu; echo "no GPU: the H200's recipe runs on the CPU" >&2; }
port=$((20000 + $$ % 20000))
for page in ${RECIPES:-docs/recipes/*.md}; do
    name=$(basename "$page" .md)
    [ "$name" != README ] || continue
    if [ "$name" = cluster ] && { ! command -v mpirun >/dev/null || "$command" --version | grep -q 'MPI *none'; }; then
        echo "no MPI: the cluster's recipe was NOT run" >&2
        continue
    fi
    sed -n '/^```sh$/,/^```$/p' "$page" | sed '/^```/d; /on the instance/d' >"$work/recipe"
    lines=$(wc -l <"$work/recipe")
    [ "$lines" -ge 7 ] && [ "$lines" -le 12 ] || fail "$page: $lines lines"
    sed "s#/tmp/#$work/#g; s/--device cuda/--device $gpu/; s/\b808[0-9]\b/$port/g; s/--steps 200/--steps 2 --batch 2 --ctx 64 --heldout 2/
         s/--max-tokens [0-9]*/--max-tokens 256 --ctx 64/; s/--rounds 3/--rounds 1/
         s/^neuronmlp compress .*--ratio 0.2/& --calib-tokens 512 --heldout 128 --rounds 0 --ctx 64/
         s/^neuronmlp quantize .*--format q[48]m\{0,1\}/& --calib-tokens 512 --heldout 128 --ctx 64/" "$work/recipe" >"$work/here"
    sh -e "$work/here" >"$work/out" 2>"$work/err" </dev/null || fail "$page: $(tail -n 5 "$work/out" "$work/err")"
    case $name in
        laptop) grep -q '"object":"text_completion"' "$work/out" || fail "$page: no completion" ;;
        amx-server) grep -q '"amx-20r"' "$work/out" || fail "$page: no list of models" ;;
        h200) grep -q '"status":"ok"' "$work/out" || fail "$page: not healthy" ;;
        trainium) [ -x "$work/trn-package/run.sh" ] || fail "$page: no package" ;;
        cluster) [ -f "$work/cluster-20r/config.json" ] || fail "$page: no trained model" ;;
    esac
    echo "$name: ok"
done
