#!/bin/sh
# What `make install` installs is enough to build and run the examples with pkg-config alone.
set -eu
command=$1
root=$2
build=$(dirname "$command")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/usr" >/dev/null
# neuronmlp.pc carries the configured prefix; a staged one is told to pkg-config
libdir=$(dirname "$(find "$work/usr" -name neuronmlp.pc)")
[ -x "$work/usr/bin/neuronmlp" ] || { echo "FAILED: no command"; exit 1; }
[ -f "$work/usr/share/man/man1/neuronmlp.1" ] || { echo "FAILED: no man page"; exit 1; }
flags=$(PKG_CONFIG_PATH=$libdir pkg-config --define-variable=prefix="$work/usr" --cflags --libs neuronmlp)
for source in "$root"/examples/*.c; do
    # shellcheck disable=SC2086
    cc -std=c11 -Wall -Wextra -Werror "$source" $flags -o "$work/$(basename "$source" .c)"
done
LD_LIBRARY_PATH=$(dirname "$libdir")
export LD_LIBRARY_PATH
out=$("$work/generate" "$root/models/tiny" "The old house")
case "$out" in "The old house"?*) ;; *) echo "FAILED: generate printed: $out"; exit 1 ;; esac
if "$work/generate" /no/such "x" 2>"$work/err"; then
    echo "FAILED: a missing model was accepted"
    exit 1
fi
grep -q "/no/such" "$work/err"
