#!/bin/sh
# Texts of the grammars of random JSON Schemas are valid. Needs jsonschema (Debian: python3-jsonschema).
set -eu
command=$1
root=$2
tool=$(dirname "$command")/tests/nmlp_schema_samples
python=""
for candidate in ${PYTHON:-} python3 /usr/bin/python3; do
    if "$candidate" -c 'import jsonschema' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: no python3 with jsonschema (Debian: python3-jsonschema); JSON Schemas were not compared" >&2
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
"$python" "$root/tests/python/json_schemas.py" "$tool"
