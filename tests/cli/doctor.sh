#!/bin/sh
# doctor and --version against what the system itself says.
. "$2/tests/lib/cli.sh"
"$command" doctor --json >"$work/json"
# value KEY: of the first "KEY":VALUE
value() { grep -o "\"$1\":\(\"[^\"]*\"\|[^,}]*\)" "$work/json" | head -n 1 | sed 's/^[^:]*://; s/^"\(.*\)"$/\1/'; }
is() { [ "$(value "$1")" = "$2" ] || fail "$1 is $(value "$1"), the system says $2"; }
yes_no() { if "$@"; then echo true; else echo false; fi; }

is memory_bytes $(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))
is threads "$(nproc)"
is huge_pages "$(sed 's/.*\[\(.*\)\].*/\1/' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null || echo unknown)"
available=$(value available_bytes)
[ "$available" -gt 0 ] && [ "$available" -lt "$(value memory_bytes)" ] || fail "available memory $available"
if [ "$(uname -m)" = x86_64 ]; then
    flag() { grep -m1 '^flags' /proc/cpuinfo | grep -qw "$1"; }
    all_flags() { for f in "$@"; do flag "$f" || return 1; done; }
    is avx2 "$(yes_no all_flags avx2 fma f16c)"
    is avx512 "$(yes_no all_flags avx2 fma f16c avx512f avx512bw avx512dq avx512vl)"
    is in_cpu "$(yes_no all_flags amx_tile amx_bf16)"
    is cpu "$(sed -n 's/^model name\t: //p' /proc/cpuinfo | head -n 1)"
    # The set that runs is the one doctor names, and every set it calls sound or absent behaves so.
    "$command" run "$root/models/tiny" -p x -n 1 --device cpu --precision f32 --json >"$work/run"
    grep -q "\"isa\":\"$(value kernel_set)\"" "$work/run" || fail "another set than $(value kernel_set) runs"
    # By default that of the weights' own precision, which is bf16.
    "$command" run "$root/models/tiny" -p x -n 1 --device cpu --json >"$work/run"
    grep -q "\"isa\":\"$(value kernel_set_bf16)\"" "$work/run" || fail "another set than $(value kernel_set_bf16) runs"
    sets=$(sed 's/.*"kernel_sets":{\([^}]*\)}.*/\1/; s/[",]/ /g' "$work/json")
    for set in amx avx512bf16 avx512 avx2 ref; do
        case "$sets" in
            *" $set : sound "*) "$command" logits "$root/models/tiny" --ids 5 --isa $set >/dev/null || fail "$set does not run" ;;
            *" $set : absent "*) "$command" logits "$root/models/tiny" --ids 5 --isa $set >/dev/null 2>&1 && fail "$set runs" ;;
            *) fail "doctor says nothing about $set: $sets" ;;
        esac
    done
fi
if [ -r /sys/devices/system/cpu/cpu0/cache/index0/size ]; then
    for index in /sys/devices/system/cpu/cpu0/cache/index*; do
        level=$(cat "$index/level")
        [ "$(cat "$index/type")" = Instruction ] && continue
        is "l${level}_bytes" $(($(sed 's/K//' "$index/size") * 1024))
    done
fi
is gpu_driver "$(yes_no test -e /proc/driver/nvidia/version)"
[ "$(value gpu_driver)" = true ] || [ -n "$(value gpu_reason)" ] || fail "no GPU and no reason"

# OpenBLAS forced to old kernels is called slow, and named.
if [ "$(value avx2)" = true ]; then
    OPENBLAS_CORETYPE=Prescott "$command" doctor --json >"$work/json"
    is blas_core Prescott
    is blas_slow true
    OPENBLAS_CORETYPE=Prescott "$command" doctor | grep -q 'OPENBLAS_CORETYPE=\(SkylakeX\|Haswell\)' || fail "no advice on OpenBLAS"
fi

"$command" doctor >"$work/text"
for word in cpu AMX kernels threads caches memory "huge pages" OpenBLAS GPU "what would make it faster"; do
    grep -q "$word" "$work/text" || fail "doctor does not mention $word"
done

# --version: the project's version, the checkout's commit, the compiler of the build, the GPU backend CMake found.
"$command" --version >"$work/version"
version=$(sed -n 's/^project(neuronmlp VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
grep -q "^neuronmlp $version" "$work/version" || fail "version: $(cat "$work/version")"
if commit=$(git -C "$root" describe --always --abbrev=12 --exclude='*' 2>/dev/null); then
    head -n 1 "$work/version" | grep -q "commit [0-9a-f]\{12\}" || fail "no commit though $commit is checked out"
fi
cache=$(dirname "$command")/CMakeCache.txt
if [ -r "$cache" ]; then
    "$command" --version --json >"$work/json"
    is build_type "$(sed -n 's/^CMAKE_BUILD_TYPE:[A-Z]*=//p' "$cache")"
    is cuda "$(yes_no grep -q '^CMAKE_CUDA_COMPILER:[A-Z]*=/' "$cache")"
    compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$cache")
    case "$(value compiler)" in *"$("$compiler" -dumpfullversion -dumpversion)"*) ;; *) fail "compiler: $(value compiler)" ;; esac
fi
echo "doctor: ok"
