#!/bin/sh
# What the build promises about the program file (cmake/hardening.cmake).
set -eu
command=$1
command -v readelf >/dev/null || { echo "SKIPPED: no readelf" >&2; exit 77; }
fail() { echo "FAILED: $1"; exit 1; }
readelf -hdlW "$command" >/tmp/nmlp-elf.$$
trap 'rm -f /tmp/nmlp-elf.$$' EXIT
grep -q "Type: *DYN" /tmp/nmlp-elf.$$ || fail "not position-independent"
grep -q GNU_RELRO /tmp/nmlp-elf.$$ || fail "no RELRO"
grep -q "BIND_NOW\|Flags:.*NOW" /tmp/nmlp-elf.$$ || fail "symbols are bound late"
grep "GNU_STACK" /tmp/nmlp-elf.$$ | grep -q "RWE" && fail "an executable stack"
nm -D "$command" 2>/dev/null | grep -q __stack_chk_fail || fail "no stack protector"
nm -D "$command" 2>/dev/null | grep -q "_chk@" || fail "no fortified functions"
# Code of ours tracks where branches may land; whether the whole program is marked so is for the C library and CUDA to say.
library=$(dirname "$command")/libneuronmlp.a
if [ "$(uname -m)" = x86_64 ] && [ -e "$library" ]; then
    readelf -n "$library" 2>/dev/null | awk '/^File:/ { file = $2; c = file ~ /\.c\.o\)?$/; n += c } /IBT, SHSTK/ && c { marked++ }
        END { printf "%d of %d objects of C are marked for CET\n", marked, n; exit !(n > 100 && marked == n) }' || fail "no control-flow protection"
fi
strings -a "$command" | grep -q "/src/base/\|$(pwd)" && fail "a path of the machine it was built on"
echo ok
