#!/bin/sh
# Emitted NKI source compiles, runs in a strict NumPy stand-in for NKI and gives the simulator's values; the stand-in
# refuses what it should; the PyTorch module computes the model's MLP. Needs python3 with NumPy.
set -eu
command=$1
root=$2
build=$(dirname "$command")
[ -e "$build/tests" ] || build=$build/../.. # the command of a lesser CPU lies in tests/isa
tool=$build/tests/nmlp_emit_case
python=""
for candidate in ${PYTHON:-} python3 /usr/bin/python3; do
    if "$candidate" -c 'import numpy' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: no python3 with NumPy (Debian: python3-numpy); emitted kernels were NOT executed" >&2
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
"$python" -W ignore "$root/tests/emit/violations.py"
"$python" "$root/tests/emit/module_check.py" "$command"
"$python" "$root/tests/emit/run_cases.py" "$tool" "$root/tests/emit/programs"

# An emitted file is a program of its own: it checks itself.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for target in trn1 trn2; do
    "$command" emit --target $target --kernel mlp --shape 16,256,128,384 -o "$work/kernel.py"
    NKI_SHIM_TARGET=$target PYTHONPATH="$root/tests/nki_shim" "$python" "$work/kernel.py" --simulate
done
