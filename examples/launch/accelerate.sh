#!/bin/sh
# The same by accelerate, which starts torchrun's ranks. On every node: NODES=2 NODE=0 HEAD=10.0.0.1 sh accelerate.sh SCENARIO...
# --num_processes counts the ranks of all nodes.
set -eu
nodes="${NODES:-1}"
exec accelerate launch --multi_gpu --num_machines "$nodes" --machine_rank "${NODE:-0}" \
    --num_processes "$((nodes * ${RANKS:-4}))" --main_process_ip "${HEAD:-127.0.0.1}" --main_process_port "${PORT:-29500}" \
    --mixed_precision no --dynamo_backend no \
    -m scaleproof measure "$@" --on cluster --out "${OUT:-results}"
