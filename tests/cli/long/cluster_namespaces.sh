#!/bin/sh
# Two and four hosts on one machine: network namespaces with names, addresses and a network of their own, whose packets
# are late and slow (tests/network/delay_switch.c; Linux's netem where a kernel has it does the same). mpirun starts
# processes there as it would by ssh. A token takes what predict --cluster says, within 20 %, and logits are those of
# one process. Delays are long beside those of a busy machine's scheduler; the quickest of three attempts counts.
. "$2/tests/lib/mpi.sh"
skip() { echo "SKIPPED: $1: a network between hosts is NOT tested"; exit 77; }
[ "$(id -u)" = 0 ] || skip "not root"
for tool in ip nsenter unshare sysctl; do command -v $tool >/dev/null || skip "no $tool"; done
case $("$command" --version) in *"Open MPI"*) ;; *) skip "not Open MPI" ;; esac
[ -c /dev/net/tun ] || skip "no /dev/net/tun"
switch_program=$(dirname "$command")/tests/nmlp_delay_switch
[ -x "$switch_program" ] || skip "no nmlp_delay_switch"
ip netns add "nmlp$$" 2>/dev/null && ip netns del "nmlp$$" || skip "no network namespaces"
urgent= # where it may: a switch that waits for a CPU is a slower network, and so are hosts that do
chrt -f 50 true 2>/dev/null && urgent="chrt -r 10"
n_hosts=0 holder= switch=

host() { echo "nmlp$$.$1"; }
down() {
    [ -z "$holder" ] || kill "$holder" 2>/dev/null || true
    [ -z "$switch" ] || wait "$switch" 2>/dev/null || true
    for k in $(seq "$n_hosts"); do ip netns del "$(host "$k")" 2>/dev/null || true; done
    n_hosts=0 holder='' switch=''
}
trap 'down; rm -rf "$work"' EXIT
up() { # hosts, latency in us, Mbit/s
    n_hosts=$1 names=
    for k in $(seq "$1"); do
        ip netns add "$(host "$k")"
        names="$names $(host "$k")"
    done
    rm -f "$work/end"
    mkfifo "$work/end"
    sleep 600 >"$work/end" &
    holder=$!
    : >"$work/switch"
    # shellcheck disable=SC2086
    $urgent "$switch_program" "$2" "$3" $names <"$work/end" >"$work/switch" 2>&1 &
    switch=$!
    for i in $(seq 100); do grep -q ready "$work/switch" && break; sleep 0.1; done
    grep -q ready "$work/switch" || { cat "$work/switch"; skip "no TUN devices in namespaces"; }
    for k in $(seq "$1"); do
        name=$(host "$k")
        ip -n "$name" link set lo up
        ip -n "$name" addr add "10.88.0.$k/24" dev slow0
        ip -n "$name" link set slow0 up
        # TCP that neither paces nor begins anew after a pause: that is not what is measured
        ip netns exec "$name" sysctl -qw net.ipv4.tcp_slow_start_after_idle=0 net.ipv4.tcp_congestion_control=reno
    done
}
# What mpirun takes for ssh: HOST COMMAND...
cat >"$work/agent" <<END
#!/bin/sh
k=\${1##*.}
shift
exec nsenter --net="/run/netns/nmlp$$.\$k" unshare -u sh -c "hostname host\$k; \$*"
END
chmod +x "$work/agent"
on_hosts() { # command: one process on each
    # shellcheck disable=SC2086
    OMPI_MCA_btl=self,tcp nsenter --net="/run/netns/$(host 1)" unshare -u sh -c 'hostname host1; exec "$@"' sh \
        mpirun -n "$n_hosts" --host "$(seq -s, -f '10.88.0.%g:1' "$n_hosts")" --mca plm_rsh_agent "$work/agent" \
        --mca btl_tcp_if_include slow0 --mca oob_tcp_if_include slow0 $urgent "$@"
}
numbers() { sed 's/.*"logits":\[\([^"]*\)\],"argmax".*/\1/; s/[][]//g' "$1" | tr , '\n'; }
same_logits() {
    on_hosts "$command" logits "$tiny" --ids 558,717,894,12,99 --positions 2,4 -t 1 --json >"$work/several" 2>"$work/err" ||
        { cat "$work/err"; fail "logits on $n_hosts hosts"; }
    numbers "$work/several" >"$work/several.numbers"
    numbers "$work/one" | paste - "$work/several.numbers" | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d
        m = $1 < 0 ? -$1 : $1; if (m > most) most = m }
        END { if (NR < 8192 || !(worst <= 1e-5 * most)) { print NR " numbers, off by " worst " of " most; exit 1 } }' ||
        fail "logits on $n_hosts hosts differ"
}
within_bounds() { # latency in us, Mbit/s: 0 within 20 %, 1 slower, 2 faster
    on_hosts "$command" bench model "$tiny" --rounds 1 -t 1 --csv "$work/csv" >"$work/out" 2>"$work/err" ||
        { cat "$work/err"; fail "bench model on $n_hosts hosts"; }
    measured=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i } $at["phase"] == "decode" { print 1000 / $at["tok_s"] }' "$work/csv")
    predicted=$("$command" predict "$tiny" --prompt 64 --generate 1 \
        --cluster "nodes=$n_hosts,latency_us=$1,gbit=$(awk "BEGIN { print $2 / 1000 }"),read_gbs=100" |
        awk -v n="$n_hosts" '$1 == n { print $2 }')
    echo "$n_hosts hosts, $1 us, $2 Mbit/s: $measured ms a token, predicted $predicted"
    awk "BEGIN { exit $measured >= 1.2 * $predicted ? 1 : $measured <= 0.8 * $predicted ? 2 : 0 }"
}

"$command" logits "$tiny" --ids 558,717,894,12,99 --positions 2,4 -t 1 --json >"$work/one"
for network in "2 20000 1000" "2 4000 1000" "4 20000 1000" "4 20000 10"; do
    # shellcheck disable=SC2086
    set -- $network
    up "$@"
    same_logits
    result=1
    for attempt in 1 2 3; do
        within_bounds "$2" "$3" && result=0 && break || result=$?
        [ "$result" = 1 ] || break
    done
    [ "$result" = 0 ] || fail "not within 20 % in $attempt attempts"
    down
done
