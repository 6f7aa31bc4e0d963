#!/bin/sh
# The server's page in a browser (tests/server/chat_page.py). NMLP_TEST_PICTURES names a folder for screenshots.
set -eu
command -v chromium >/dev/null || { echo "SKIPPED: chromium is not installed" >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$2/tests/server/chat_page.py" "$1" "$2" "$work" ${NMLP_TEST_PICTURES:+"$NMLP_TEST_PICTURES"}
