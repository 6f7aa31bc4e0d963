#!/bin/sh
# The Python package over the library of this build (tests/python/package.py).
set -eu
command=$1
root=$2
command -v python3 >/dev/null || { echo "SKIPPED: no python3; the Python package was NOT tested" >&2; exit 77; }
library=$(dirname "$command")/libneuronmlp.so
[ -e "$library" ] || { echo "SKIPPED: no $library; the Python package was NOT tested" >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export NEURONMLP_LIBRARY="$library" PYTHONDONTWRITEBYTECODE=1
python3 "$root/tests/python/package.py" "$command" "$root" "$work"
