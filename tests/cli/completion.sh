#!/bin/sh
# Bash completion, driven as bash drives it: every command, every option of every --help, values where they are known, names of files.
set -eu
command=$1
root=$2
command -v bash >/dev/null || { echo "no bash"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/here" "$work/here/folder"
touch "$work/here/file.txt"
ln -s "$command" "$work/bin/neuronmlp"
PATH=$work/bin:$PATH
export PATH
cd "$work/here"
fail() { echo "FAILED: $1"; exit 1; }

# offers WORDS…: what bash would offer for the last word, one a line. Outside an interactive shell there is no compopt.
cat >"$work/drive.bash" <<'EOF'
compopt() { :; }
. "$1"
shift
COMP_WORDS=(neuronmlp "$@")
COMP_CWORD=$#
_neuronmlp
[ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\n' "${COMPREPLY[@]}"
EOF
offers() { bash "$work/drive.bash" "$root/completions/neuronmlp.bash" "$@"; }
# same TITLE WANTED WORDS…: exactly these, in any order, separated by spaces
same() {
    title=$1
    wanted=$(printf '%s\n' $2 | sort)
    shift 2
    got=$(offers "$@" | sort)
    [ "$got" = "$wanted" ] || fail "$title: offered $(echo $got), expected $(echo $wanted)"
}

names=$("$command" --help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p')
[ "$(echo "$names" | wc -l)" -ge 15 ] || fail "the commands were not found"
same "commands" "$names --help --version" ""
same "a command begun" "recover report" re
for name in $names; do
    "$command" "$name" --help | sed -n '/^options:/,/^examples:/p' >"$work/help"
    options=$(grep -o '^  [ -].\{0,3\} *--[a-z0-9-]*' "$work/help" | grep -o -- '--[a-z0-9-]*')
    letters=$(sed -n 's/^  \(-[a-z]\), --.*/\1/p' "$work/help")
    [ "$(echo "$letters" | sort | uniq -d)" = "" ] || fail "$name has a letter twice: $letters"
    echo "$options" | grep -q -- --json || fail "$name: its options were not found"
    same "options of $name" "$options $letters" "$name" -
    same "a long option of $name begun" "--help$(echo "$options" | sed -n 's/^--h/ --h/p' | grep -v '^ --help$' | tr -d '\n')" "$name" --h
    # every list of words in a help is offered as it stands there
    sed -n 's/^  .*--\([a-z-]*\) \([a-z0-9-]*|[a-z0-9|-]*\)\( .*\)\{0,1\}$/\1 \2/p' "$work/help" | while read -r option list; do
        same "$name --$option" "$(echo "$list" | tr '|' ' ')" "$name" "--$option" ""
    done
done

same "device" "cpu cuda auto" run model --device ""
same "precision" "f32 bf16" logits model --precision ""
same "format" "csv" eval model --format c
same "a value begun" "cuda" run model --device cu
same "--option=" "cpu cuda auto" run model --device =
same "--option=value" "auto" run model --device = a
same "kernel sets" "auto amx avx512bf16 avx512 avx2 ref" run model --isa ""
same "targets and files" "trn1 trn2 trn3 file.txt folder" plan --target ""
same "kernels" "xw xw-tiled xw-hoist xw-block xw-opt" simulate --kernel xw
same "operations" "xw xuv mlp" plan --op ""
same "tasks" "arc_easy arc_challenge" eval model --task arc
same "presets of synth" "qwen3-1.7b qwen3-4b qwen3-8b qwen3-30b-a3b" synth qwen3
same "benchmarks" "neuron neuron-ablation neuron-mlp" bench neuron
same "model folders" "folder" run ""
same "shapes or folders" "folder" predict fol
same "folders for output" "folder" expand model -o ""
same "files" "file.txt folder" run model --file ""
same "text has no candidates" "" run model -p ""
same "an unknown command" "" nonsense ""
# a positional too many is not offered; options are
offers info model "" | grep -q '^folder$' && fail "info takes one model"
offers info model "" | grep -q -- '^--json$' || fail "options behind the last argument"
echo "completion: ok"
