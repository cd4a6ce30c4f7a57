#!/bin/sh
# Starts four ranks on each node. On every node: NODES=2 NODE=0 HEAD=10.0.0.1 sh torchrun.sh SCENARIO...
set -eu
exec torchrun --nnodes "${NODES:-1}" --nproc-per-node "${RANKS:-4}" --node-rank "${NODE:-0}" \
    --master-addr "${HEAD:-127.0.0.1}" --master-port "${PORT:-29500}" \
    -m scaleproof measure "$@" --on cluster --out "${OUT:-results}"
