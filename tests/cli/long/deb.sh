#!/bin/sh
# `make deb`: the packages build, lintian finds nothing, and what is in them works without the tree they came from.
set -eu
command=$1
root=$2
for tool in dh fakeroot lintian; do command -v $tool >/dev/null || { echo "SKIPPED: no $tool"; exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; exit 1; }
mkdir "$work/tree"
(cd "$root" && git ls-files -z | xargs -0 cp --parents -t "$work/tree")
sh "$work/tree/scripts/deb" >"$work/log" 2>&1 || fail "$(tail -n 30 "$work/log")"
version=$("$command" --version | sed -n '1s/neuronmlp \([0-9.]*\).*/\1/p')
for name in neuronmlp libneuronmlp0 libneuronmlp-dev; do
    dpkg -x "$work/tree/build/deb/${name}_${version}_$(dpkg --print-architecture).deb" "$work/root" || fail "no package $name of version $version"
done
rm -rf "$work/tree"
"$work/root/usr/bin/neuronmlp" run "$root/models/tiny" -p "The old house" -n 8 --json 2>/dev/null | grep -o '"text":"[^"]*"' >"$work/got"
"$command" run "$root/models/tiny" -p "The old house" -n 8 --device cpu --json 2>/dev/null | grep -o '"text":"[^"]*"' >"$work/want"
diff "$work/got" "$work/want" || fail "the packaged command says something else"
# The library as a compiler finds it.
lib=$(dirname "$(find "$work/root" -name libneuronmlp.a)")
flags=$(PKG_CONFIG_SYSROOT_DIR=$work/root PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --define-variable="prefix=/usr" --cflags --libs neuronmlp)
# shellcheck disable=SC2086
cc "$root/examples/generate.c" $flags -I"$work/root/usr/include" -L"$lib" -o "$work/generate"
LD_LIBRARY_PATH=$lib "$work/generate" "$root/models/tiny" "The old house" >/dev/null || fail "the library does not run"
grep -q '^ExecStart=/usr/bin/neuronmlp' "$work/root/lib/systemd/system/neuronmlp.service" || fail "the unit starts another program"
echo "deb: ok"
