#!/bin/sh
# Half a minute of mixed load (tests/server/soak.py); NMLP_SOAK_SECONDS asks for more.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$2/tests/server/soak.py" "$1" "$2" "$work" "${NMLP_SOAK_SECONDS:-30}"
