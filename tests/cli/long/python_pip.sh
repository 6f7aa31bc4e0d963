#!/bin/sh
# pip installs the Python package into an environment of its own, which then finds the library, and what its README shows runs. Needs pip and
# setuptools, from the network or installed.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; exit 1; }
python3 -m venv "$work/venv" >/dev/null 2>&1 || { echo "SKIPPED: python3 has no venv (Debian: python3-venv); pip install was NOT tried" >&2; exit 77; }
cp -r "$root/python" "$work/python" # pip leaves a build folder in the sources
if ! "$work/venv/bin/pip" install -q "$work/python" >"$work/log" 2>&1; then
    grep -qE 'Could not find a version|No matching distribution|Connection|Temporary failure' "$work/log" || fail "$(cat "$work/log")"
    echo "SKIPPED: pip reaches no index for setuptools; pip install was NOT tried" >&2
    exit 77
fi
NEURONMLP_LIBRARY=$(dirname "$command")/libneuronmlp.so
export NEURONMLP_LIBRARY
sed -n '/^```python$/,/^```$/p' "$root/python/README.md" | sed '/^```/d' | sed "s|/tmp/|$work/|" >"$work/example.py"
(cd "$root" && "$work/venv/bin/python" "$work/example.py" >"$work/out") || fail "the README's example"
tail -n 1 "$work/out" | grep -qE '^0\.[12][0-9]* [0-9.]+ [0-9.]+$' || fail "$(tail -n 1 "$work/out")"
"$work/venv/bin/python" -c 'import importlib.metadata, neuronmlp; assert importlib.metadata.version("neuronmlp") == neuronmlp.__version__ == neuronmlp.library_version()' ||
    fail "versions differ"
echo "python_pip: ok"
