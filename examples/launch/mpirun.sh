#!/bin/sh
# Starts ranks by Open MPI, on the hosts of a file: HEAD=10.0.0.1 HOSTS=hosts RANKS=8 sh mpirun.sh SCENARIO...
# mpirun gives ranks no address at which they meet, so it is set here: that of the first host.
set -eu
exec mpirun -np "${RANKS:-4}" ${HOSTS:+--hostfile "$HOSTS"} --bind-to none \
    -x MASTER_ADDR="${HEAD:-127.0.0.1}" -x MASTER_PORT="${PORT:-29500}" \
    scaleproof measure "$@" --on cluster --out "${OUT:-results}"
