# The beginning of tests of the command: . "$2/tests/lib/cli.sh"
# $command is the program, $root the source tree, $work a folder that goes when the test ends.
set -eu
command=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=$root/models/tiny

fail() { echo "FAILED: $1"; exit 1; }
has() { grep -qF -- "$2" "$1" || { cat "$1"; fail "\"$2\" not in $1"; }; }
number() { sed -n "s/.*\"$1\":\([0-9.e-]*\).*/\1/p" "$2"; }
