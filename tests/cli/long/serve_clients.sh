#!/bin/sh
# Clients from PyPI against the server (tests/server/clients.py). NMLP_TEST_CLIENTS names a virtual environment with
# tests/server/clients.txt installed; without it the system's Python is asked.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=python3
[ -z "${NMLP_TEST_CLIENTS:-}" ] || python=$NMLP_TEST_CLIENTS/bin/python
"$python" "$2/tests/server/clients.py" "$1" "$2" "$work"
