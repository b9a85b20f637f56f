#!/bin/bash
# Three hosts on one machine: network namespaces joined by a bridge, one rank in each, MPI over TCP between them.
#
#     sudo PYTHON=python MPIEXEC=mpiexec tests/cluster/netns.sh [--bench]
#
# A training run; then collectives, and exchanges of experts' rows, over three ranks on three hosts and six ranks on three hosts, two of which share memory, which must give the bits of one
# process. --bench: all-reduces beside MPI's own, and what each host sent.
# Needs root, ip (iproute2) and MPICH's launcher, whose agents this script starts in the namespaces (instead of by ssh) through a launcher
# program that it writes. Exit status 77 (skipped) when something is missing; 0 when the training run over three "hosts" gives the losses of one process,
# and the loss of a host that hangs or is cut off is told within 10 s.
set -u
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=${PYTHON:-python3}
MPIEXEC=${MPIEXEC:-$(dirname "$(command -v "$PYTHON")")/mpiexec}
skip() { echo "skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root"
command -v ip > /dev/null || skip "needs ip"
[ -x "$MPIEXEC" ] || skip "no mpiexec"
"$MPIEXEC" --version 2>&1 | grep -qi hydra || skip "needs MPICH's mpiexec"

P=dt$$ # names of everything that is made here begin with it
W=$(mktemp -d)
cleanup() {
    for i in 1 2 3; do
        for pid in $(ip netns pids $P-$i 2> /dev/null); do kill -9 "$pid" 2> /dev/null; done
        ip netns del $P-$i 2> /dev/null
    done
    ip netns del $P-sw 2> /dev/null # the bridge goes with it
    rm -rf "$W"
}
trap cleanup EXIT
# The launcher's end and the bridge live in a namespace of their own, so that nothing of the machine's network is touched.
ip netns add $P-sw 2> /dev/null || skip "cannot make network namespaces"
S="ip netns exec $P-sw"
{ $S ip link add br0 type bridge && $S ip addr add 10.77.0.254/24 dev br0 && $S ip link set br0 up && $S ip link set lo up; } || skip "cannot make a bridge"
for i in 1 2 3; do
    ip netns add $P-$i && ip link add $P.$i netns $P-sw type veth peer name eth0 netns $P-$i || skip "cannot make a pair of interfaces"
    $S ip link set $P.$i master br0 up
    ip netns exec $P-$i ip addr add 10.77.0.$i/24 dev eth0
    ip netns exec $P-$i ip link set eth0 up
    ip netns exec $P-$i ip link set lo up
done
$S ping -c 1 -W 5 10.77.0.3 > /dev/null 2>&1 || echo "(no answer to a ping, or no ping)"

# What Hydra calls like ssh: options, a host, a command line.
cat > "$W/rsh" << EOF
#!/bin/bash
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1; shift
exec ip netns exec $P-\${host##*.} unshare -u bash -c "hostname host\${host##*.}; \$*"
EOF
chmod +x "$W/rsh"
# Shared memory would reach from one "host" to the others: MPI must use the network.
export MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp UCX_TLS=tcp,self
# A build beside the package, or else the installed one.
compgen -G "$ROOT/python/dtorch/_C*.so" > /dev/null && export PYTHONPATH=$ROOT/python${PYTHONPATH:+:$PYTHONPATH}
H=10.77.0
LAUNCH="$S $MPIEXEC -localhost $H.254 -launcher rsh -launcher-exec $W/rsh -hosts"
sent() { ip netns exec $P-"$1" cat /sys/class/net/eth0/statistics/tx_bytes 2> /dev/null || ip netns exec $P-"$1" awk '/eth0/ { print $10 }' /proc/net/dev; }

DTORCH_NODES=1 "$PYTHON" "$ROOT/tests/cluster/program.py" 3 > "$W/one" || exit 1
timeout 120 $LAUNCH $H.1:1,$H.2:1,$H.3:1 -n 3 "$PYTHON" "$ROOT/tests/cluster/program.py" 3 > "$W/three" 2> "$W/err"
rc=$?
sent=$(sent 2)
cat "$W/one" "$W/three"
echo "exit $rc; host 2 sent ${sent:-?} bytes over its interface"
[ $rc = 0 ] || { tail -5 "$W/err"; exit 1; }
[ "$(cut -d' ' -f1-5 "$W/one")" = "$(cut -d' ' -f1-5 "$W/three")" ] && [ "$(cut -d' ' -f5- "$W/three")" = "599999 3" ] && [ "${sent:-0}" -gt 500000 ] || exit 1

for what in bits rows; do
    DTORCH_NODES=1 "$PYTHON" "$ROOT/tests/cluster/$what.py" 6 > "$W/one" || exit 1
    for each in 1 2; do
        timeout 120 $LAUNCH $H.1:$each,$H.2:$each,$H.3:$each -n $((3 * each)) "$PYTHON" "$ROOT/tests/cluster/$what.py" 6 > "$W/three" 2> "$W/err" || { tail -5 "$W/err"; exit 1; }
        cmp <(head -n -1 "$W/one") <(head -n -1 "$W/three") || exit 1
        tail -1 "$W/three" | { read -r nodes _ received read; echo "$what: $nodes ranks on 3 hosts: the bits of one process; rank 0 received $received bytes, read $read"; }
    done
done
if [ "${1:-}" = --bench ]; then
    for each in 1 2; do
        "$PYTHON" "$ROOT/bench/allreduce.py" --rounds 3 --ranks $((3 * each)) --mpiexec "$LAUNCH $H.1:$each,$H.2:$each,$H.3:$each" || exit 1
        echo "$each ranks a host"
    done
fi

# The second "host" is cut off: its link goes down, everything on it lives. Or it hangs: its process is stopped.
# Node 0 must say so, with the node and the line, within 10 s; what runs on the host must end by itself.
until_lost() {
    timeout 60 $S "$MPIEXEC" -localhost 10.77.0.254 -launcher rsh -launcher-exec "$W/rsh" -hosts 10.77.0.1:1,10.77.0.2:1,10.77.0.3:1 -n 3 \
        "$PYTHON" "$ROOT/tests/cluster/until_lost.py" > "$W/lost" 2> "$W/err" &
    local run=$!
    for _ in $(seq 600); do
        grep -q running "$W/lost" && break
        sleep 0.1
    done
    local rank
    for rank in $(ip netns pids $P-2); do grep -q "until_lost.py" <(tr '\0' '\n' < /proc/"$rank"/cmdline | sed -n 2p) && break; done
    if [ "$1" = cut ]; then $S ip link set $P.2 down; else kill -STOP "$rank"; fi
    for _ in $(seq 200); do
        grep -q "is lost" "$W/lost" && break
        sleep 0.1
    done
    [ "$1" = cut ] || kill -CONT "$rank" # whoever stopped it wakes it
    for _ in $(seq 150); do
        kill -0 "$rank" 2> /dev/null || break
        sleep 0.1
    done
    echo "$1: $(tail -1 "$W/lost"); $(kill -0 "$rank" 2> /dev/null && echo "its process LIVES" || echo "its process has ended")"
    local said
    said=$(grep "node 1 (host2) is lost" "$W/lost" | grep "until_lost.py:" | cut -d. -f1)
    kill -0 "$rank" 2> /dev/null && said=
    kill $run 2> /dev/null
    wait $run 2> /dev/null
    [ -n "$said" ] && [ "$said" -lt 10 ]
}
until_lost stop || { tail -5 "$W/err"; exit 1; }
until_lost cut || { tail -5 "$W/err"; exit 1; }
