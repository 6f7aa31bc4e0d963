#!/bin/sh
# Random tiny models of every supported family give the logits of transformers, which makes them. Needs torch and
# transformers from PyPI, in the python3 that PYTHON names.
set -eu
command=$1
root=$2
python=""
for candidate in ${PYTHON:-} python3; do
    if "$candidate" -c 'import torch, transformers' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: no python3 with torch and transformers (PyPI); only the committed models were compared" >&2
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
"$python" "$root/tests/python/families.py" check "$command"
# Any key of a configuration with another value: refused, or what transformers makes of it.
"$python" "$root/tests/python/config_keys.py" "$command" "$root/tests/data/families"
