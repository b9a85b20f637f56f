#!/bin/bash
# Slurm with two nodes on this machine: `srun` starts a training run over four ranks, whose losses must be those of one process; `sbatch` a job with dtorch-run.
#
#     sudo PYTHON=python tests/cluster/slurm.sh [--demo]
#
# Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge, whose daemons it starts with a configuration of its own (ports, state and
# logs in a temporary folder) and ends again. MPICH (the extra `mpi`) speaks Slurm's PMI-2. --demo also trains examples/train.py for a few steps.
# Exit status 77 (skipped) when something is missing.
set -u
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=$(command -v "${PYTHON:-python3}")
skip() { echo "skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root"
for tool in slurmctld slurmd munged srun; do command -v $tool > /dev/null || skip "no $tool"; done
pgrep -x slurmctld > /dev/null && skip "a Slurm controller is running already"

W=$(mktemp -d)
chmod 755 "$W"
HOST=$(hostname -s)
CORES=$(nproc)
MEMORY=$(awk '/MemTotal/ {print int($2 / 1024 / 4)}' /proc/meminfo)
MUNGE=
cleanup() {
    for name in slurmd-n1 slurmd-n2 slurmctld; do
        [ -f "$W/$name.pid" ] && kill "$(cat "$W/$name.pid")" 2> /dev/null
    done
    sleep 1
    for name in slurmd-n1 slurmd-n2 slurmctld; do
        [ -f "$W/$name.pid" ] && kill -9 "$(cat "$W/$name.pid")" 2> /dev/null
    done
    [ -n "$MUNGE" ] && kill "$MUNGE" 2> /dev/null
    rm -rf "$W"
}
trap cleanup EXIT

if ! pgrep -x munged > /dev/null; then
    mkdir -p "$W/munge" && chown munge: "$W/munge" && chmod 700 "$W/munge"
    mkdir -p /run/munge && chown munge: /run/munge
    [ -s /etc/munge/munge.key ] || { head -c 1024 /dev/urandom > /etc/munge/munge.key && chown munge: /etc/munge/munge.key && chmod 400 /etc/munge/munge.key; }
    setpriv --reuid munge --regid munge --clear-groups munged --foreground --log-file="$W/munge/log" --pid-file="$W/munge/pid" --seed-file="$W/munge/seed" &
    MUNGE=$!
fi

cat > "$W/slurm.conf" << EOF
ClusterName=dtorch
SlurmctldHost=$HOST
SlurmUser=root
SlurmctldPort=17817
AuthType=auth/munge
CryptoType=crypto/munge
StateSaveLocation=$W/state
SlurmctldPidFile=$W/slurmctld.pid
SlurmctldLogFile=$W/slurmctld.log
SlurmdSpoolDir=$W/spool-%n
SlurmdPidFile=$W/slurmd-%n.pid
SlurmdLogFile=$W/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=60
MpiDefault=pmi2
NodeName=n1 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=17818 CPUs=$CORES RealMemory=$MEMORY State=UNKNOWN
NodeName=n2 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=17819 CPUs=$CORES RealMemory=$MEMORY State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:4
EOF
mkdir -p "$W/state" "$W/spool-n1" "$W/spool-n2"
export SLURM_CONF=$W/slurm.conf
slurmctld -f "$W/slurm.conf" || exit 1
for n in n1 n2; do slurmd -f "$W/slurm.conf" -N $n || exit 1; done
for _ in $(seq 60); do
    [ "$(sinfo -h -N -t idle -o %N 2> /dev/null | wc -l)" = 2 ] && break
    sleep 0.5
done
sinfo -N -o '%N %t %c'
[ "$(sinfo -h -N -t idle -o %N | wc -l)" = 2 ] || { tail -5 "$W"/*.log; echo "the two nodes did not come up"; exit 1; }

PROGRAM=$ROOT/tests/cluster/program.py
# A build beside the package, or else the installed one.
compgen -G "$ROOT/python/dtorch/_C*.so" > /dev/null && export PYTHONPATH=$ROOT/python${PYTHONPATH:+:$PYTHONPATH}
cd "$W" || exit 1
DTORCH_NODES=1 "$PYTHON" "$PROGRAM" 4 > one || exit 1
timeout 120 srun -N 2 -n 4 --mpi=pmi2 "$PYTHON" "$PROGRAM" 4 > four 2> err
rc=$?
cat one four
[ $rc = 0 ] && [ "$(cut -d' ' -f1-5 one)" = "$(cut -d' ' -f1-5 four)" ] && [ "$(cut -d' ' -f6 four)" = 4 ] || { tail -20 err "$W"/slurmd*.log; echo "srun: exit $rc, or other losses"; exit 1; }
echo "srun over two Slurm nodes, four ranks: the losses of one process"

cat > job.sh << EOF
#!/bin/bash
#SBATCH -N 2 -n 4 -o $W/job.out
exec "$PYTHON" -m dtorch.run -n 4 --max-restarts 1 --checkpoint $W/run --launcher "srun --mpi=pmi2" $PROGRAM 4
EOF
timeout 180 sbatch -W --export=ALL job.sh
rc=$?
cat job.out
[ $rc = 0 ] && grep -q "attempt 2 of at most 2" job.out && [ "$(tail -1 job.out | cut -d' ' -f1-2)" = "$(cut -d' ' -f3-4 one)" ] || { echo "sbatch: exit $rc, or other losses"; exit 1; }
echo "sbatch with dtorch-run: a broken run went on from its checkpoint"

if [ "${1:-}" = --demo ]; then
    timeout 300 srun -N 2 -n 4 --mpi=pmi2 "$PYTHON" "$ROOT/examples/train.py" --model llama --dp 2 --tp 2 --steps 30 || exit 1
fi
