#!/bin/sh
# What the documentation says and a machine can check: links lead somewhere, the man page knows every command and global option, and the keys that
# docs/file-formats.md lists are the keys of the JSON.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
fail() { echo "FAILED: $1"; exit 1; }

n=0
for page in README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs/*.md docs/lab/*.md examples/*.md; do
    for link in $(grep -o '](\([^)# ]*\)' "$page" | sed 's/^](//' | grep -v '^https\?:' | sort -u); do
        [ -e "$(dirname "$page")/$link" ] || fail "$page: $link does not exist"
        n=$((n + 1))
    done
done
[ "$n" -ge 50 ] || fail "only $n links were found"
for page in docs/*.md; do
    [ "$page" = docs/README.md ] || grep -q "($(basename "$page"))" docs/README.md || fail "docs/README.md does not list $page"
done

names=$("$command" --help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p')
for name in $names; do
    grep -q "^\.BI\? \(\"\)\?$name\b" docs/neuronmlp.1 || fail "the man page does not know $name"
    grep -q "\`${name}[ \`]" README.md docs/file-formats.md || fail "neither README nor file formats mention $name"
done
sed -n 's/^\.BI\? "\?\([a-z]*\)\b.*/\1/p' docs/neuronmlp.1 | sort -u >"$work/known"
sed -n '/^\.SH COMMANDS/,/^\.SH/p' docs/neuronmlp.1 | sed -n '/^\.TP/{n;s/^\.BI\{0,1\} "\{0,1\}\([a-z]*\).*/\1/p}' | sort >"$work/man"
echo "$names" | sort | diff - "$work/man" || fail "commands (<) and man page (>) differ"
for option in json threads help version; do
    grep -q -- "\\\\-\\\\-$option" docs/neuronmlp.1 || fail "the man page does not know --$option"
done
for code in 0 1 2; do sed -n '/^\.SH EXIT/,/^\.SH/p' docs/neuronmlp.1 | grep -qw $code || fail "the man page does not know exit code $code"; done
if command -v man >/dev/null && man --help 2>&1 | grep -q -- --warnings; then
    man --warnings -l docs/neuronmlp.1 2>"$work/err" >/dev/null
    [ ! -s "$work/err" ] || fail "the man page: $(cat "$work/err")"
fi

# Top-level keys of the object in $work/json: nested objects, lists and strings are folded first.
keys() { sed 's/"\([a-z0-9_]*\)":/@\1 /g; s/"[^"]*"/0/g; s/^{//; s/}$//; :a; s/{[^{}]*}/0/g; s/\[[^][]*\]/0/g; ta' "$work/json" | grep -o '@[a-z0-9_]*' | tr -d @ | sort; }
# documented COMMAND: the words in backticks of its row
documented() { grep "^| \`$1\`" docs/file-formats.md | head -n 1 | grep -o '`[^`]*`' | sed 1d | tr -d '`' | tr ' ' '\n' | grep '^[a-z0-9_]*$' | sort -u; }
# same COMMAND "more or fewer keys" WORDS…
same() {
    name=$1
    beside=$2
    shift 2
    "$command" "$@" --json >"$work/json" 2>"$work/err" || fail "$*: $(cat "$work/err")"
    keys >"$work/got"
    documented "$name" >"$work/wanted"
    [ -s "$work/wanted" ] || fail "docs/file-formats.md has no keys for $name"
    for word in $beside; do
        grep -vx "$word" "$work/wanted" >"$work/less" || true
        mv "$work/less" "$work/wanted"
    done
    grep -vx simulated "$work/got" | diff "$work/wanted" - || fail "$name: documented (<) and printed (>) keys differ"
}
same info "" info models/tiny
same tokenize "text" tokenize models/tiny -p hi
same logits "" logits models/tiny --ids 5
same run "length stop context caller" run models/tiny -p hi -n 2 --device cpu
same plan "" plan --target trn1 --op xuv --shape 128,128,128,512
same simulate "" simulate --target trn1 --kernel xw-opt --shape 128,128,512 --check
same emit "source" emit --target trn2 --kernel xw-opt --shape 128,128,512 -o "$work/x.py"
same doctor "" doctor
"$command" --version --json >"$work/json"
[ "$(keys)" = build ] || fail "--version --json: $(keys)"
echo "docs: ok"
