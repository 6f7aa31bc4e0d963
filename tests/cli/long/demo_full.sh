#!/bin/sh
# The demo as `make demo` runs it, beside other libraries where they are built.
set -eu
NMLP_DEMO=full
export NMLP_DEMO
exec sh "$2/tests/cli/demo.sh" "$@"
