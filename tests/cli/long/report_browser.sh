#!/bin/sh
# The pages of tests/cli/report.sh in a browser.
set -eu
NMLP_TEST_BROWSER=yes
export NMLP_TEST_BROWSER
exec sh "$2/tests/cli/report.sh" "$@"
