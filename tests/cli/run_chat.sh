#!/bin/sh
# run --chat as a conversation on a pseudo terminal.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$2/tests/python/conversation.py" "$1" "$2" "$work"
