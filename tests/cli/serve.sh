#!/bin/sh
# serve as clients use it (tests/server/client.py), and what its options refuse.
. "$2/tests/lib/cli.sh"
refused() { # refused PART WORDS…
    part=$1
    shift
    status=0
    timeout 20 "$command" serve "$root/models/tiny" "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ] || { echo "FAILED: exit $status: $*"; exit 1; }
    grep -qF -- "$part" "$work/err" || { echo "FAILED: \"$part\" not in: $(cat "$work/err")"; exit 1; }
}
refused "--api-key-file" --host 0.0.0.0 --port 0
refused "exclude each other" --no-auth --api-key-file "$work/key"
refused "--port must be" --port 70000
refused "--host is \"nowhere\"" --host nowhere --no-auth --port 0
refused "no-such-key" --api-key-file "$work/no-such-key"
echo short >"$work/key"
refused "8 characters" --api-key-file "$work/key"
refused "--ctx is 9999" --ctx 9999 --port 0
mkdir "$work/client"
python3 "$root/tests/server/client.py" "$command" "$root" "$work/client"
