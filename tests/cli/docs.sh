#!/bin/sh
# What the documentation says and a machine can check: links lead somewhere, the man pages know every command and option, and the keys that
# docs/file-formats.md lists are the keys of the JSON.
. "$2/tests/lib/cli.sh"
cd "$root"

n=0
for page in README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs/*.md docs/lab/*.md docs/recipes/*.md examples/*.md python/*.md; do
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
# Man pages are written from the tables behind --help: a page for each command, every option of its help with the same words, no complaint of
# what reads them.
sh scripts/manual "$command" "$work/man"
[ "$(ls "$work/man" | wc -l)" -eq "$(($(echo "$names" | wc -l) + 1))" ] || fail "man pages: $(ls "$work/man")"
plain() { sed 's/\\f[BIR]//g; s/\\-/-/g; s/\\(aq/'"'"'/g; s/\\e/\\/g; s/^\\&//' "$1"; } # words without roff's marks, sentences on one line
for name in $names; do
    grep -q "\`${name}[ \`]" README.md docs/file-formats.md || fail "neither README nor file formats mention $name"
    page=$work/man/neuronmlp-$name.1
    grep -q "^\.BR neuronmlp\\\\-$name (1)" "$work/man/neuronmlp.1" || fail "neuronmlp(1) does not know $name"
    plain "$page" | tr '\n' ' ' >"$work/page"
    "$command" "$name" --help >"$work/help"
    sed -n '/^options:/,/^examples:/p' "$work/help" | grep -o '^  [ -].\{0,3\} *--[a-z-]*' | grep -o -- '--[a-z-]*' >"$work/options"
    [ "$(grep -c '^\.TP' "$page")" -eq "$(($(wc -l <"$work/options") + 3))" ] || fail "$name: the page has other options than the help"
    while IFS= read -r option; do grep -qF -- "--$option" "$work/page" || fail "neuronmlp-$name(1) lacks --$option"; done <<LIST
$(sed 's/^--//' "$work/options")
LIST
    sed -n '/^examples:/,$p' "$work/help" | sed -n 's/^  //p' | while IFS= read -r line; do
        plain "$page" | grep -qxF -- "$line" || fail "neuronmlp-$name(1) lacks the example $line"
    done
done
for page in "$work"/man/*.1; do
    for code in 0 1 2; do sed -n '/^\.SH EXIT/,/^\.SH/p' "$page" | grep -qx $code || fail "$page does not know exit code $code"; done
    if command -v man >/dev/null && man --help 2>&1 | grep -q -- --warnings; then
        man --warnings -l "$page" 2>"$work/err" >/dev/null
        [ ! -s "$work/err" ] || fail "$page: $(cat "$work/err")"
    fi
    if command -v mandoc >/dev/null; then mandoc -T lint -W warning "$page" || fail "$page: mandoc"; fi
done

# Options of the recipes exist; tests/cli/long/recipes.sh runs them.
sed -n '/^```sh$/,/^```$/p' docs/recipes/*.md | sed 's/#.*//; :a; /\\$/{N;s/\\\n//;ta}' | grep -o 'neuronmlp [a-z]* [^|;&]*' >"$work/recipes"
[ "$(wc -l <"$work/recipes")" -ge 25 ] || fail "only $(wc -l <"$work/recipes") commands in docs/recipes"
while read -r _ name rest; do
    "$command" "$name" --help >"$work/help" || fail "docs/recipes: there is no command $name"
    for option in $(echo "$rest" | grep -o -- ' --[a-z-]*'); do grep -q -- "$option " "$work/help" || fail "docs/recipes: $name has no $option"; done
done <"$work/recipes"

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
