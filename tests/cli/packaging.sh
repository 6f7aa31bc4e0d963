#!/bin/sh
# The systemd unit and the container file: options they use exist, and the libraries the program needs are in the image.
. "$2/tests/lib/cli.sh"
fail() {
    echo "FAILED: $*"
    exit 1
}
unit=$root/packaging/neuronmlp.service
image=$root/packaging/Containerfile
"$command" serve --help >"$work/help"
for flag in $(grep -E '^(ExecStart|CMD)' "$unit" "$image" | grep -oE -- '--[a-z-]+'); do
    grep -q -- "$flag " "$work/help" || fail "serve has no option $flag"
done
grace=$(sed -n 's/^ExecStart=.*--grace \([0-9]*\).*/\1/p' "$unit")
wait=$(sed -n 's/^TimeoutStopSec=//p' "$unit")
[ "$wait" -gt "$grace" ] || fail "systemd kills after $wait s, before requests may finish ($grace s)"
if command -v systemd-analyze >/dev/null; then
    sed "s|/usr/local/bin/neuronmlp|$command|" "$unit" >"$work/neuronmlp.service"
    systemd-analyze verify --man=no "$work/neuronmlp.service" >"$work/verify" 2>&1 || true
    if grep -F neuronmlp.service "$work/verify" | grep -qE 'Unknown|Invalid|Failed|not executable|ignoring'; then
        fail "$(cat "$work/verify")"
    fi
fi
[ "$(grep -c '^USER 10001' "$image")" -eq 1 ] || fail "the container runs as root"
# The health check, as the image would run it: it passes while the server answers and fails when it is gone.
sed -n '/^HEALTHCHECK/,/\]$/p' "$image" | sed '$!d; s/^ *"//; s/"\]$//; s/\\\\/\\/g' >"$work/health"
"$command" serve "$root/models/tiny" --port 0 >/dev/null 2>"$work/log" &
server=$!
for _ in $(seq 600); do if grep -q '"ready"' "$work/log"; then break; else sleep 0.1; fi; done
port=$(sed -n 's/.*"ready".*:\([0-9]*\)"}$/\1/p' "$work/log")
grep -q 8080 "$work/health" || fail "no health check: $(cat "$work/health")"
sed "s/8080/$port/" "$work/health" >"$work/check"
bash "$work/check" || fail "the health check does not pass"
kill "$server"
wait "$server" || true
if bash "$work/check" 2>/dev/null; then fail "the health check passes without a server"; fi
# What the packages' rules ask of CMake exists.
for option in $(grep -oh -- '-D[A-Z_]*' "$root/packaging/debian/rules" "$image" | sed 's/^-D//' | sort -u); do
    case $option in CMAKE_* | BUILD_TESTING) continue ;; esac
    grep -rqw "$option" "$root/CMakeLists.txt" "$root/cmake" || fail "CMake has no option $option"
done
if command -v dpkg >/dev/null && command -v objdump >/dev/null; then
    for library in $(objdump -p "$command" | awk '/NEEDED/ { print $2 }'); do
        case $library in # of every Debian image, or of a build with CUDA or MPI
            libc.so* | libm.so* | ld-linux* | libgcc_s* | libstdc++* | librt* | libdl* | libpthread* | libmpi* | libasan* | libubsan*) continue ;;
        esac
        package=$(dpkg -S "*/$library" 2>/dev/null | head -1 | cut -d: -f1)
        [ -n "$package" ] || continue
        sed -n '/^FROM/h;//!H;$!d;x;p' "$image" | grep -qw -- "$package" || fail "$library is of $package, which the image has not"
    done
fi
if [ -n "${NMLP_TEST_CONTAINER:-}" ]; then # names the program that builds images; it needs the network
    "$NMLP_TEST_CONTAINER" build -q -f "$image" "$root" >/dev/null || fail "the image does not build"
else
    echo "not built: the image; NMLP_TEST_CONTAINER=podman builds it" >&2
fi
