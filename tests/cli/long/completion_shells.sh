#!/bin/sh
# Completion of zsh and fish offers what bash's does: the program decides, the shells only ask. Runs where both shells are installed.
set -eu
command=$1
root=$2
for shell in zsh fish; do command -v $shell >/dev/null || { echo "SKIPPED: no $shell"; exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/here" "$work/here/folder"
touch "$work/here/file.txt"
ln -s "$command" "$work/bin/neuronmlp"
PATH=$work/bin:$PATH HOME=$work XDG_CONFIG_HOME=$work XDG_DATA_HOME=$work
export PATH HOME XDG_CONFIG_HOME XDG_DATA_HOME
cd "$work/here"
fail() { echo "FAILED: $1"; exit 1; }

# zsh's completion functions, as far as ours uses them, outside a line editor: the candidates with their meanings, one a line.
cat >"$work/drive.zsh" <<'EOS'
emulate -R zsh
compset() { PREFIX=${PREFIX#*=} }
_describe() { print -rl -- "${(@P)2}" }
_files() { if [[ $1 == -/ ]]; then print -rl -- ${PREFIX}*(N/); else print -rl -- ${PREFIX}*(N); fi }
shift_file=$1; shift
words=(neuronmlp "$@") CURRENT=$#words PREFIX=$words[-1]
source $shift_file
EOS
zsh_offers() { zsh -f "$work/drive.zsh" "$root/completions/_neuronmlp" "$@"; }
fish_offers() { fish --no-config -c "source $root/completions/neuronmlp.fish; complete -C '$*'"; }
# same TITLE WANTED WORDS…: candidates without meanings; a folder's slash does not count
same() {
    title=$1
    wanted=$(printf '%s\n' $2 | sort)
    shift 2
    got=$(zsh_offers "$@" | sed 's/\([^\\]\):.*/\1/' | sort)
    [ "$got" = "$wanted" ] || fail "zsh, $title: offered $(echo $got), expected $(echo $wanted)"
    got=$(fish_offers neuronmlp "$@" | cut -f1 | sed 's/^--[a-z]*=//; s|/$||' | sort -u)
    [ "$got" = "$wanted" ] || fail "fish, $title: offered $(echo $got), expected $(echo $wanted)"
}
same "a command begun" "recover report" re
same "a long option begun" "--device" run model --dev
same "values" "cpu cuda auto" run model --device ""
same "a value begun" "cuda" run model --device cu
same "--option=value" "auto" run model --device=a
same "model folders" "folder" run ""
same "files" "file.txt folder" run model --file ""
same "text has no candidates" "" run model -p ""
names=$("$command" --help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p')
for name in $names; do
    zsh_offers "" | grep -q "^$name:" || fail "zsh does not offer $name"
    fish_offers "neuronmlp " | grep -q "^$name	" || fail "fish does not offer $name"
done
zsh_offers re | grep -q "^report:one HTML page" || fail "zsh does not say what a command does"
fish_offers neuronmlp re | grep -q "^report	one HTML page" || fail "fish does not say what a command does"
zsh_offers run model --dev | grep -q '^--device:.*GPU' || fail "zsh does not say what an option does"
echo "completion_shells: ok"
