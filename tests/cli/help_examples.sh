#!/bin/sh
# Every command explains itself, and every example it shows works when pasted.
. "$2/tests/lib/cli.sh"
cd "$root"
bin=$work/bin
mkdir "$bin"
ln -s "$command" "$bin/neuronmlp"
PATH=$bin:$PATH
export PATH
for name in $("$command" --help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p'); do
    help=$("$command" "$name" --help)
    echo "$help" | grep -q '^usage: neuronmlp' || { echo "FAILED: $name --help has no usage"; exit 1; }
    echo "$help" | grep -q -- '--json' || { echo "FAILED: $name has no --json"; exit 1; }
    echo "$help" | sed -n '/^examples:/,$p' | sed -n 's/^  //p' >"$work/examples"
    [ -s "$work/examples" ] || { echo "FAILED: $name --help has no examples"; exit 1; }
    while IFS= read -r line; do
        # examples write below /tmp; here they write below the test's own folder
        here=$(printf '%s' "$line" | sed "s#/tmp/#$work/#g")
        # a server runs until it is told to end
        case $name in serve) here="exec timeout --preserve-status -s TERM 3 $here" ;; esac
        sh -c "$here" >"$work/out" 2>"$work/err" </dev/null || { echo "FAILED: $line"; cat "$work/err"; exit 1; }
    done <"$work/examples"
done
